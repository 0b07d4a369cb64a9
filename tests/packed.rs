//! Directories of files that mostly hold one byte, as one small file: what the tests of frozen formats keep.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// The bytes of a piece. A home that was never written has 32 bytes that are not zero.
const PIECE: usize = 64;

/// The first line of a packed directory; the pieces' bytes follow it.
#[derive(Serialize, Deserialize)]
struct Packed {
    /// The bytes of a piece.
    #[serde(default = "sector")]
    piece: usize,
    files: Vec<PackedFile>,
}

/// What a piece was in the first fixtures.
fn sector() -> usize {
    512
}

#[derive(Serialize, Deserialize)]
struct PackedFile {
    /// Its path in the directory.
    name: String,
    bytes: u64,
    /// The byte that fills all pieces that are not listed.
    fill: u8,
    /// The runs of other pieces: first, count.
    #[serde(alias = "sectors")]
    pieces: Vec<(u64, u64)>,
    /// The runs of pieces of newlines, which pad a manifest, in a file that another byte fills.
    #[serde(default)]
    newlines: Vec<(u64, u64)>,
}

fn add(runs: &mut Vec<(u64, u64)>, no: u64) {
    match runs.last_mut() {
        Some((first, count)) if *first + *count == no => *count += 1,
        _ => runs.push((no, 1)),
    }
}

/// Packs a directory, with those in it, but for the locks.
pub(crate) fn pack(dir: &Path) -> Vec<u8> {
    let (mut files, mut data) = (Vec::new(), Vec::new());
    pack_in(dir, "", &mut files, &mut data);
    let mut packed = serde_json::to_vec(&Packed { piece: PIECE, files }).unwrap();
    packed.push(b'\n');
    packed.extend_from_slice(&data);
    packed
}

fn pack_in(dir: &Path, within: &str, files: &mut Vec<PackedFile>, data: &mut Vec<u8>) {
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths.into_iter().filter(|path| !path.ends_with("lock")) {
        let name = format!("{within}{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() {
            pack_in(&path, &format!("{name}/"), files, data);
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let (mut pieces, mut newlines) = (Vec::new(), Vec::new());
        let fill = bytes.last().copied().filter(|byte| *byte == b'\n').unwrap_or(0);
        for (no, piece) in (0..).zip(bytes.chunks(PIECE)) {
            let is_all = |of: u8| piece.iter().all(|byte| *byte == of);
            if is_all(fill) {
                continue;
            }
            if is_all(b'\n') {
                add(&mut newlines, no);
                continue;
            }
            add(&mut pieces, no);
            data.extend_from_slice(piece);
        }
        files.push(PackedFile { name, bytes: bytes.len() as u64, fill, pieces, newlines });
    }
}

pub(crate) fn unpack(packed: &[u8], dir: &Path) {
    let end = packed.iter().position(|byte| *byte == b'\n').unwrap();
    let head: Packed = serde_json::from_slice(&packed[..end]).unwrap();
    let mut data = &packed[end + 1..];
    for file in head.files {
        let mut bytes = vec![file.fill; file.bytes as usize];
        let range = |(first, count): (u64, u64)| {
            let [at, end] = [first, first + count].map(|no| no as usize * head.piece);
            at..end.min(file.bytes as usize)
        };
        file.newlines.into_iter().for_each(|run| bytes[range(run)].fill(b'\n'));
        for run in file.pieces {
            let (piece, rest) = data.split_at(range(run).len());
            bytes[range(run)].copy_from_slice(piece);
            data = rest;
        }
        let path = dir.join(file.name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    assert!(data.is_empty());
}
