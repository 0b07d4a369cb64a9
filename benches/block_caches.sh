#!/usr/bin/env bash
# TPC-C over one disk and a slice of one NVMe device: without the SSD, behind the kernel's block caches, and
# on Pagetier's own tiers. The same engine (tpcc_lite) and the same memory everywhere. With --kv: YCSB by
# RocksDB and redb on those block caches, and by Pagetier on its tiers; see --help.
set -euo pipefail

usage() {
    cat <<'HELP'
Usage: benches/block_caches.sh [OPTIONS] DISK NVME

Runs tpcc_lite once per way of using NVME in front of DISK, and prints one table: New-Orders a minute.

  none        no SSD; LRU pool
  bcache      bcache, write-back, no sequential cutoff; LRU pool, no SSD policy
  dm-cache    dm-cache, smq, write-back; LRU pool, no SSD policy
  writecache  dm-writecache; LRU pool, no SSD policy
  lru2        Pagetier with an LRU pool and LRU2 on the SSD
  default     Pagetier with its defaults

DISK and NVME are block devices, and all data on them is destroyed: on DISK as much as the database takes, on
NVME the slice. A device that holds data is refused without --overwrite; one that is mounted, swapped to or
claimed is refused always. Needs root, dmsetup, blkid, and make-bcache for bcache. A way whose kernel module
or program is missing gets a row that says so.

Options:
  --only LIST      run only these ways, such as "none,bcache,default"
  --warehouses N   size of the database, about 82 MB each [default: 4]
  --ssd-mib N      slice of NVME that each way may use [default: 107]
  --pool-kib N     buffer pool [default: 10922]
  --warmup S       seconds before the measurement [default: 180]
  --seconds S      seconds of measurement [default: 180]
  --tpcc PATH      the program [default: built by cargo]
  --kv PATH        instead of TPC-C: YCSB by RocksDB and redb on a file system over each block cache, and by
                   the key-value store on Pagetier's own tiers, its log on a part of the slice. PATH is the
                   bench `ycsb` of crates/bench-rivals, built with the feature rocksdb. Ways: pagetier, and
                   rocksdb or redb, +, and none, bcache, dm-cache or writecache
  --memory-mib N   with --kv: the memory of an engine, page cache included [default: 64]
  --data-times N   with --kv: the bytes of all values, as a multiple of the memory [default: 5]
  --log-mib N      with --kv: the part of the slice that has Pagetier's log [default: 12]
  --page-kib N     with --kv: the size of Pagetier's pages [default: 16, the store's]
  --after-load CMD with --kv: a command for the shell between load and workloads
  --overwrite      allow devices that hold data
  -h, --help       print this

The table is also written to target/bench-report/.
HELP
}

die() { echo "block_caches: $*" >&2; exit 2; }

WAYS=''
WAREHOUSES=4 SSD_MIB=107 POOL_KIB=10922 WARMUP=180 SECONDS_MEASURED=180 TPCC='' OVERWRITE=no
KV='' MEMORY_MIB=64 DATA_TIMES=5 LOG_MIB=12 PAGE_KIB=16 AFTER_LOAD=true
devices=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit ;;
        --overwrite) OVERWRITE=yes; shift; continue ;;
        --only | --warehouses | --ssd-mib | --pool-kib | --warmup | --seconds | --tpcc | --kv | \
            --memory-mib | --data-times | --log-mib | --page-kib | --after-load)
            [ $# -ge 2 ] || die "$1 takes a value" ;;
        -*) die "no such option: $1 (see --help)" ;;
        *) devices+=("$1"); shift; continue ;;
    esac
    case $1 in
        --only) WAYS=$2 ;;
        --warehouses) WAREHOUSES=$2 ;;
        --ssd-mib) SSD_MIB=$2 ;;
        --pool-kib) POOL_KIB=$2 ;;
        --warmup) WARMUP=$2 ;;
        --seconds) SECONDS_MEASURED=$2 ;;
        --tpcc) TPCC=$2 ;;
        --kv) KV=$2 ;;
        --memory-mib) MEMORY_MIB=$2 ;;
        --data-times) DATA_TIMES=$2 ;;
        --log-mib) LOG_MIB=$2 ;;
        --page-kib) PAGE_KIB=$2 ;;
        --after-load) AFTER_LOAD=$2 ;;
    esac
    shift 2
done
[ ${#devices[@]} -eq 2 ] || { usage >&2; exit 2; }
for number in "$WAREHOUSES" "$SSD_MIB" "$POOL_KIB" "$WARMUP" "$SECONDS_MEASURED" "$MEMORY_MIB" "$LOG_MIB" \
    "$PAGE_KIB"; do
    [[ $number =~ ^[0-9]+$ ]] || die "not a number: $number"
done
if [ -z "$WAYS" ]; then
    WAYS=none,bcache,dm-cache,writecache,lru2,default
    [ -z "$KV" ] || WAYS=pagetier,rocksdb+bcache,rocksdb+writecache,redb+bcache,redb+writecache
fi
[ -z "$KV" ] || [ "$SSD_MIB" -gt $((LOG_MIB + 8)) ] || die "the slice must be larger than the log"
DISK=$(readlink -f "${devices[0]}") NVME=$(readlink -f "${devices[1]}")
[ "$DISK" != "$NVME" ] || die "DISK and NVME are the same device"
[ "$(id -u)" = 0 ] || die "needs root"
for program in dmsetup blkid blockdev; do
    command -v "$program" >/dev/null || die "needs $program"
done
cd "$(dirname "$0")/.."
TARGET=${CARGO_TARGET_DIR:-target}

# --- refusals ---------------------------------------------------------------------------------------------

# Whether anything but zeros lies in the range of $3 bytes from $2 on of device $1.
has_bytes() { ! cmp -s -n "$3" -i "$2:0" "$1" /dev/zero; }

# A claim by the kernel or another program shows when device mapper claims the device, below.
refuse_unless_free() {
    local device=$1 name bytes
    [ -b "$device" ] || die "$device is not a block device"
    name=$(basename "$device")
    if lsblk -nro MOUNTPOINTS "$device" 2>/dev/null | grep -q .; then
        die "$device: refused, because it or a part of it is mounted or swapped to"
    fi
    if grep -qE "^$device(p?[0-9]+)? " /proc/self/mounts /proc/swaps; then
        die "$device: refused, because it or a part of it is mounted or swapped to"
    fi
    if find "/sys/class/block/$name/" -path '*/holders/*' 2>/dev/null | grep -q .; then
        die "$device: refused, because another device lies on it"
    fi
    [ "$OVERWRITE" = no ] || return 0
    if blkid -p "$device" >/dev/null 2>&1; then
        die "$device: refused, because it holds data: $(blkid -p -s TYPE -s PTTYPE "$device" || true);" \
            "see --overwrite"
    fi
    bytes=$(blockdev --getsize64 "$device")
    if has_bytes "$device" 0 1048576 || has_bytes "$device" $((bytes - 1048576)) 1048576; then
        die "$device: refused, because its first or last MiB is not zero; see --overwrite"
    fi
}

refuse_unless_free "$DISK"
refuse_unless_free "$NVME"
nvme_sectors=$(blockdev --getsz "$NVME") disk_sectors=$(blockdev --getsz "$DISK")
ssd_sectors=$((SSD_MIB * 2048)) meta_sectors=8192
[ "$nvme_sectors" -ge $((ssd_sectors + meta_sectors)) ] || die "$NVME is smaller than $SSD_MIB MiB and 4 MiB"

# --- set-up and clean-up ----------------------------------------------------------------------------------

NAME=pagetier-bc-$$
LOOK=''
FOLDER=$(mktemp -d)
child='' bcache='' mounted=''

stop_bcache() {
    [ -n "$bcache" ] || return 0
    local set
    set=$(readlink -f "/sys/block/$bcache/bcache/cache" || true)
    echo 1 >"/sys/block/$bcache/bcache/stop" || true
    [ ! -e "$set/stop" ] || echo 1 >"$set/stop" || true
    for _ in $(seq 50); do [ -e "/sys/block/$bcache" ] || break; sleep 0.2; done
    bcache=''
}

take_down() {
    [ -z "$mounted" ] || umount "$FOLDER/mnt"
    mounted=''
    stop_bcache
    local part
    for part in cached meta part log fast slow; do
        ! dmsetup info "$NAME-$part" >/dev/null 2>&1 || dmsetup remove --retry "$NAME-$part" || true
    done
}

clean_up() {
    local status=$?
    trap '' INT TERM
    [ -z "$child" ] || { kill -TERM "$child" 2>/dev/null || true; wait "$child" 2>/dev/null || true; }
    take_down
    rm -rf "$FOLDER"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A mapping claims the device below it, so that a device in use is refused here at the latest.
map() {
    local part=$1 table=$2 error
    if ! error=$(dmsetup create "$NAME-$part" --table "$table" 2>&1); then
        LOOK=$error
        return 1
    fi
    dmsetup mknodes "$NAME-$part" >/dev/null
}

blank() { dd if=/dev/zero of="$1" bs=1M count="$2" oflag=direct conv=notrunc status=none; }

has_module() { modprobe -q "$1" 2>/dev/null || [ -e "/sys/module/${1//-/_}" ]; }

SLOW=/dev/mapper/$NAME-slow FAST=/dev/mapper/$NAME-fast
has_module dm-mod || true
HAS_MAPPER=no
if dmsetup targets >/dev/null 2>&1; then
    HAS_MAPPER=yes
else
    SLOW=$DISK FAST=$NVME
    echo "note: this kernel has no device mapper; only the ways without a block cache can run" >&2
fi

# Maps DISK and the slice of NVME, both blank at the start. Without device mapper the store claims them.
set_up_devices() {
    [ "$HAS_MAPPER" = yes ] || return 0
    map slow "0 $disk_sectors linear $DISK 0" || die "$DISK: refused, because it is in use: $LOOK"
    map fast "0 $ssd_sectors linear $NVME 0" || die "$NVME: refused, because it is in use: $LOOK"
    blank "$SLOW" 8
    blank "$FAST" 8
}

# Prepares one way: sets `hdd` and `args`, or `missing` if it cannot run here.
set_up() {
    hdd=$SLOW missing=''
    args=(--ssd-bytes 0 --pool-policy lru --ssd-policy none)
    case $1 in
        bcache | dm-cache | writecache)
            [ "$HAS_MAPPER" = yes ] || { missing="this kernel has no device mapper"; return; } ;;
    esac
    case $1 in
        none) ;;
        bcache) set_up_bcache ;;
        dm-cache)
            has_module dm-cache-smq || { missing="no module dm-cache-smq"; return; }
            map meta "0 $meta_sectors linear $NVME $ssd_sectors" || { missing=$LOOK; return; }
            blank "/dev/mapper/$NAME-meta" 4
            map cached "0 $disk_sectors cache /dev/mapper/$NAME-meta $FAST $SLOW 64 1 writeback smq 2 \
migration_threshold 204800" || { missing=$LOOK; return; }
            hdd=/dev/mapper/$NAME-cached ;;
        writecache)
            has_module dm-writecache || { missing="no module dm-writecache"; return; }
            map cached "0 $disk_sectors writecache s $SLOW $FAST 4096 0" || { missing=$LOOK; return; }
            hdd=/dev/mapper/$NAME-cached ;;
        lru2) args=(--ssd "$FAST" --ssd-bytes "${SSD_MIB}MiB" --pool-policy lru --ssd-policy lru2) ;;
        default) args=(--ssd "$FAST" --ssd-bytes "${SSD_MIB}MiB") ;;
        pagetier)
            [ "$HAS_MAPPER" = yes ] || { missing="this kernel has no device mapper"; return; }
            # Of the slice, the first part is the SSD, the second has the log. The store takes blank devices.
            local ssd=$((ssd_sectors - LOG_MIB * 2048))
            map part "0 $ssd linear $NVME 0" || { missing=$LOOK; return; }
            map log "0 $((LOG_MIB * 2048)) linear $NVME $ssd" || { missing=$LOOK; return; }
            blank "/dev/mapper/$NAME-part" $((SSD_MIB - LOG_MIB))
            blank "$SLOW" 65
            dd if=/dev/zero of="$SLOW" bs=512 seek=$((disk_sectors - 2048)) count=2048 \
                conv=notrunc status=none
            sync "$SLOW" ;;
        *) die "no such way: $1 (see --help)" ;;
    esac
}

set_up_bcache() {
    has_module bcache || { missing="no module bcache"; return; }
    command -v make-bcache >/dev/null || { missing="no program make-bcache"; return; }
    make-bcache -C "$FAST" -B "$SLOW" --wipe-bcache --writeback --block 4k --bucket 64k >/dev/null
    local device part set
    for device in "$FAST" "$SLOW"; do
        # udev may have been first.
        readlink -f "$device" >/sys/fs/bcache/register 2>/dev/null || true
    done
    # Not by the node's name: without udev it is no link to the device's own.
    part=$(dmsetup info -c --noheadings -o blkdevname "$NAME-slow")
    for _ in $(seq 50); do
        bcache=$(basename "$(readlink -f "/sys/block/$part/bcache/dev" 2>/dev/null || true)")
        [ -b "/dev/$bcache" ] && break
        sleep 0.2
    done
    [ -b "/dev/$bcache" ] || { missing="bcache does not start"; return; }
    echo 0 >"/sys/block/$bcache/bcache/sequential_cutoff"
    set=/sys/block/$bcache/bcache/cache
    echo 0 >"$set/congested_read_threshold_us"
    echo 0 >"$set/congested_write_threshold_us"
    hdd=/dev/$bcache
}

# --- the runs ---------------------------------------------------------------------------------------------

if [ -n "$KV" ]; then
    [ -x "$KV" ] || die "$KV is not a program"
elif [ -z "$TPCC" ]; then
    cargo build --release --example tpcc_lite
    TPCC=$TARGET/release/examples/tpcc_lite
fi
[ -n "$KV" ] || [ -x "$TPCC" ] || die "$TPCC is not a program"

# Runs YCSB on the engine of a way, the file system of the others' on the cached disk.
run_kv() {
    local engine=${1%+*} on=$hdd own=()
    if [ "$engine" = pagetier ]; then
        on=/dev/mapper/$NAME-log
        own=(--hdd "$SLOW" --ssd "/dev/mapper/$NAME-part" --ssd-mib $((SSD_MIB - LOG_MIB)))
        own+=(--log-mib $((LOG_MIB / 2)) --page-kib "$PAGE_KIB")
    fi
    mkdir -p "$FOLDER/mnt"
    mkfs.ext4 -q -F "$on" && mount "$on" "$FOLDER/mnt" && mounted=yes || return
    # The first workload warms up; what it measured does not count.
    wait_for "$KV" --engines "$engine" --dir "$FOLDER/mnt/ycsb" --memory-mib "$MEMORY_MIB" --json \
        --data-times "$DATA_TIMES" --seconds "$SECONDS_MEASURED" --after-load "$AFTER_LOAD" "${own[@]}" \
        --workloads C,A,B,C,D,E,F
}

# The operations a second of the last run of workload $1.
per_second() {
    grep "\"workload\":\"$1\"" "$FOLDER/out.json" | tail -n 1 | grep -o '"per_second":[0-9]*' | cut -d : -f 2
}

# In the background, so that a signal interrupts the wait and the clean-up can stop the run.
wait_for() {
    "$@" >"$FOLDER/out.json" 2>"$FOLDER/err" &
    child=$!
    local status=0
    wait "$child" || status=$?
    child=''
    return "$status"
}

run() {
    wait_for "$TPCC" --dir "$FOLDER/db" --hdd "$hdd" --warehouses "$WAREHOUSES" --json \
        --pool-bytes "${POOL_KIB}KiB" "${args[@]}" "$@"
}

# A field of the run's JSON.
field() {
    tr -d ' \n' <"$FOLDER/out.json" | grep -o "\"$1\":\"\?[^,\"}]*" | head -n 1 | sed 's/.*://; s/"//'
}

sys() { cat "/sys/class/block/$(basename "$1")/$2" 2>/dev/null || echo unknown; }

mkdir -p "$TARGET/bench-report"
REPORT=$TARGET/bench-report/block_caches-$(basename "$DISK")+$(basename "$NVME").md
say() { echo "$*" | tee -a "$REPORT"; }
: >"$REPORT"
say "# block_caches on $DISK and $NVME"
say
for device in "$DISK" "$NVME"; do
    mib=$(($(blockdev --getsize64 "$device") >> 20))
    say "- $device: model $(sys "$device" device/model | xargs), $mib MiB," \
        "rotational $(sys "$device" queue/rotational), sectors of $(sys "$device" queue/logical_block_size)" \
        "(logical) and $(sys "$device" queue/physical_block_size) (physical) bytes"
done
say "- $(nproc) cores, $(uname -sr), load $(cut -d ' ' -f 1 /proc/loadavg), $(date -u '+%F %H:%M')"
if [ -n "$KV" ]; then
    say "- memory $MEMORY_MIB MiB, data $DATA_TIMES times as large, slice of $SSD_MIB MiB, of it" \
        "$LOG_MIB for Pagetier's log, its pages of $PAGE_KIB KiB, $SECONDS_MEASURED s each, C before as warm-up"
    say
    say "| operations a second | A: half updates | B: 5% updates | C: reads | D: reads of the latest |" \
        "E: short scans | F: read, change, write |"
    say "| --- | --- | --- | --- | --- | --- | --- |"
else
    say "- $WAREHOUSES warehouses, slice of $SSD_MIB MiB, pool of $POOL_KIB KiB, $WARMUP s of warm-up," \
        "$SECONDS_MEASURED s of measurement"
    say
    say "| way | New-Orders a minute | p50, ms | p95, ms | pool misses, % | consistency |"
    say "| --- | --- | --- | --- | --- | --- |"
fi
if [ "$(sys "$DISK" queue/rotational)" = 0 ]; then
    echo "note: $DISK does not rotate; the table then says little" >&2
fi

IFS=, read -ra ways <<<"$WAYS"
for way in "${ways[@]}"; do
    rm -rf "$FOLDER/db"
    mkdir "$FOLDER/db"
    set_up_devices
    set_up "${way#*+}"
    if [ -n "$missing" ]; then
        say "| $way | not run: $missing | | | | |"
    elif [ -n "$KV" ]; then
        if run_kv "$way"; then
            row="| $way |"
            for workload in A B C D E F; do row+=" $(per_second "$workload") |"; done
            say "$row"
        else
            say "| $way | failed: $(tail -n 1 "$FOLDER/err") | | | | | |"
        fi
    # --force: the checks above stand for the store's own, and an earlier way's pages are on the devices.
    elif run --force --warmup 0 --seconds 1 && run --warmup "$WARMUP" --seconds "$SECONDS_MEASURED"; then
        say "| $way | $(field tpmc) | $(field new_order_p50_ms) | $(field new_order_p95_ms)" \
            "| $(field pool_miss_rate_pct) | $(field consistency) |"
    else
        say "| $way | failed: $(grep -m 1 . "$FOLDER/err" || echo 'no message') | | | | |"
    fi
    take_down
done
echo "written to $REPORT"
