//! Deliberately broken protocols, for the simulator's mutation check: a campaign that does not notice them
//! proves nothing.
//!
//! Only with the feature `mutations`, which no store is built with. `rules.rs` says what each changes.

/// One rule of the protocol (`docs/recovery.md`) that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(hidden)]
pub enum Mutation {
    /// R: home writes leave no record in the journal.
    NoJournal,
    /// R: the pool's home writes leave none, so that their pages' old copies come back; write-backs, whose
    /// records have other uses too, do.
    HomeUnrecorded,
    /// The journal is free up to a checkpoint's capture although pages whose records are older were still on
    /// their way home then, so that the map still names their copies.
    HomingForgotten,
    /// The journal's space is given up when a checkpoint is captured, not when it is durable.
    JournalFreedEarly,
    /// Recovery counts what a slot of the zone held before the checkpoint.
    WatermarkIgnored,
    /// N: a slot given up by a rewrite is reused before the rewrite is durable.
    SlotReusedEarly,
    /// N: a page is rewritten in its slot.
    RewriteInPlace,
    /// Z: slots outside the zone are written.
    ZoneIgnored,
    /// Z: while a checkpoint is written, slots of the old zone are, whether they are in the new one or not.
    NextZoneIgnored,
    /// A checkpoint's header may be durable before its body and the slots that it vouches for: one flush
    /// after both instead of one after each. With the header written and flushed first, and then the body,
    /// nothing could go wrong: the header's checksum of the body keeps the checkpoint from counting until the
    /// body is whole, the flush between the two covers every slot that was complete at the capture, and zone
    /// and journal are not touched before the flush after both.
    HeaderBeforeBody,
    /// The new zone is in force before the checkpoint's header is durable.
    HeaderNotFlushed,
    /// Opening takes the newest checkpoint that reads as sound, whatever proves that a newer one was in
    /// force. Close a store, or crash it after a checkpoint; flip a bit of the newest map's body, or of both
    /// its headers; open: older pages, no error.
    MapUnproved,
    /// The mark of a checkpoint that failed outlives its headers. Let the write of a mark fail and land all
    /// the same; cut the power after the next checkpoint has wiped the headers: the store does not open.
    MarkOutlivesHeaders,
    /// A ring entry is free once its home write completed, without an HDD flush.
    RingFreedEarly,
    /// Recovery repairs no home page from the ring.
    RingNotRepaired,
    /// Home writes start before ring and journal are durable.
    HomeBeforeFlush,
    /// A slot goes home before its own content is durable: without the flush before it is read, nor the one
    /// after its record was written. Leaving out the first alone would be harmless: the second covers the
    /// slot too, and precedes the home write.
    WriteBackBeforeFlush,
    /// A slot is clean once its home write completed, without an HDD flush.
    CleanBeforeFlush,
    /// A write-back goes on although its page has a newer version.
    StaleWriteBack,
    /// Several home writes of a page at once.
    TwoInFlight,
    /// `sync` does not flush.
    SyncNotFlushed,
    /// Every opening starts with the same stamp.
    StampsRepeat,
    /// N, of a policy that appends: a slot is given out in its turn although its page is not home.
    AppendedTooSoon,
    /// N, of second chances: a page's copy to the front counts although the page was written anew meanwhile.
    MovedOverNewer,
    /// N, of second chances: a page's copy to the front counts although its source was dropped as bad, and
    /// the page went home since. mv-fifo-gsc: a move is under way; a read finds its clean source bad; the
    /// page is changed and written home (a drain, another mode); the copy ends.
    MoveSurvives,
    /// N, of second chances: a page is copied to the front, with a larger stamp, although a newer version is
    /// on its way to a slot. Shows only under a policy that gives second chances regardless (`hostile:1`): a
    /// page is being rewritten when its old slot is judged.
    MoveUnderNewer,
    /// Write-through: a page that was written home keeps its copy of the version before when no new one can
    /// be made, or although one could.
    ChangedCopyKept,
    /// The record of a home write may be durable before the image that it speaks of, although the copy that
    /// it voids is the only one of its version.
    RecordBeforeImage,
    /// The doublewrite policy: home writes start before the slots that back them are durable, and their
    /// records.
    DoublewriteBeforeFlush,
    /// The doublewrite policy: a slot is clean once its home write completed, without an HDD flush.
    DoublewriteFreedEarly,
    /// The doublewrite policy: recovery mends no homes from the slots that back them.
    DoublewriteNotMended,
    /// Checksums do not depend on the store. Seen with devices that another store used, overwritten with
    /// `force`: its pages (of the same space and number, in epochs above ours) read as ours after a crash, on
    /// homes that were allocated and never written.
    ChecksumsUnseeded,
    /// A flush runs in its caller: a `sync` is dropped while its flush runs, the flush fails, and the next
    /// `sync` flushes well.
    FlushInCaller,
    /// A failed flush is forgotten by the next opening: it takes what it can read for durable, and a power
    /// cut takes that away.
    FailureNotRemembered,
    /// An opening reckons with failed flushes only if the manifest has a note of them. Kill the process right
    /// after a flush has failed, before the note is made; open; cut the power.
    KilledTrusted,
    /// Without a ring, a copy of a home write that is not durable is clean: it is evicted or its page goes
    /// home again, the power is cut, and the SSD is given up or the slot reused.
    CleanUnflushedRingOff,
    /// Without a ring, the record of a home write voids the SSD's only copy of the version before, which the
    /// HDD has not: degraded SSD, power cut.
    OnlyCopyVoided,
    /// A drain does not hold its pages: one is discarded while its home write is in flight, the power is cut,
    /// and nothing mends the torn home.
    DrainedPageDiscarded,
    /// A home whose write failed once is never mended: its page is discarded, the ring fills up behind its
    /// image, and the store refuses writes for ever.
    FailedHomeKept,
    /// A home that could not be mended when its place in the ring was wanted makes the store refuse writes
    /// for good, also when the next attempt would succeed.
    FailedMendFinal,
    /// A cleaner that paused after a failure of the log or a device sleeps out its pause, although a request
    /// needs it. Let the log fail for long; then let it work, and ask for a frame.
    CleanerSleeps,
    /// Nothing is flushed before a recovery's first write: a kill between a ring write and its flush, a
    /// recovery that rewrites the home, a power cut. Leaving out the recovery's own flushes would be harmless
    /// in a whole store: an opening marks both devices before, and flushes the marks. So the marks of
    /// openings are left out too, and not missed; those of closes are not.
    RecoveryUnflushed,
    /// A recovered ring goes on at place 0 and keeps outdated images: an older image outlives the newest one,
    /// the home rots, and a recovery mends it with the older version.
    RingFromZero,
    /// A store that was dropped goes on starting I/O. Seen when it is opened again at once: the old one's
    /// cleaner or maintenance writes an old version over what the new one has written.
    FenceOpen,
    /// A store's devices and locks are free as soon as it is dropped. Seen with a slow home write under way
    /// at the drop: the store is opened again, writes the page newer, and the old write lands last.
    DrainNotAwaited,
    /// Growth: extents are reserved in memory before HDD and manifest have them. Let a growth fail for want
    /// of room, go on allocating, sync, crash.
    GrowthInMemoryFirst,
    /// Epochs: an opening compares none of those that manifest, HDD and SSD recorded. Put an older copy of a
    /// device back after a close.
    EpochUnchecked,
    /// Losses: the manifest does not list what is given up with the SSD. Give it up, or accept its loss; then
    /// crash or drop the opening.
    LossUnrecorded,
    /// Losses: an opening forgets those that are not acknowledged yet. Give the SSD up, close, open.
    LossForgotten,
    /// A first opening names no ids before it formats devices. Drop it at every await, open again.
    FirstOpeningUnnamed,
    /// An SSD is formatted anew although an exchange could not be recorded, so that the manifest may name the
    /// one that was formatted before. Switch the SSD off; let the save that takes it back fail and take
    /// effect; take it back once more; crash.
    AttachInDoubt,
    /// A checkpoint does not mark copies that await their homes' flush. The flush makes one of them clean,
    /// its slot is given out, and a power cut tears the new image: the page passes for lost.
    AwaitingCopyUnmarked,
    /// The SSD is given up while writes are under way, and what is in memory is not marked once more: pages
    /// that could be saved are lost.
    AbandonedInHaste,
    /// A list of losses says that it is exact although the HDD may have some of its pages.
    ListPassesForExact,
    /// After a failed flush of the HDD, homes are read as if nothing had happened: a device that took back
    /// what it could not flush shows older versions.
    HomesTrusted,
    /// An opening takes more room on the HDD. Fill the disk, close, open.
    OpeningGrows,
    /// The manifest's slack is given away to growth and new spaces, so that a store whose disk is full cannot
    /// note a drop or a close.
    SlackGivenAway,
    /// New extents are not made blank: a page that was never written reads as what another space, or another
    /// store, left in its place.
    ExtentsNotBlanked,
    /// A rewrite on a full SSD waits for a free slot, also when a recovery left none and none will come.
    RewriteWaits,
    /// A space is dropped without being marked first. Drop the future of `drop_space`, or crash; count the
    /// extents after the next opening.
    DropUnmarked,
    /// After a crash a space ends behind its last sound home, not behind the last one that is not blank. Let
    /// the home of a space's last page rot, and crash: the page is missing, not corrupt.
    EndsBySoundHomes,
    /// A home that holds another page's image reads as never written. Misdirect a home write to it.
    MisplacedMissing,
    /// A growth does not write zeroes where zeroes can be read. Let the flush fail that follows the zeroes of
    /// one growth, open again, let another growth have the same room, cut the power: what was there before is
    /// back, in the place of pages that were never written.
    BlankByLooks,
    /// A device that is attached to an open store, or takes a lost SSD's place, is looked at in its first
    /// blocks only. Leave another program's data further in.
    AttachedUnchecked,
    /// After a crash, slots of the zone, and places of journal and ring, that cannot be read count as empty.
    /// Let one of them fail all reads.
    UnreadableIsEmpty,
}

impl Mutation {
    /// Those that the campaign catches.
    #[cfg(feature = "mutations")]
    pub const ALL: &[Self] = &[
        Self::NoJournal,
        Self::HomeUnrecorded,
        Self::HomingForgotten,
        Self::JournalFreedEarly,
        Self::WatermarkIgnored,
        Self::SlotReusedEarly,
        Self::RewriteInPlace,
        Self::ZoneIgnored,
        Self::NextZoneIgnored,
        Self::HeaderBeforeBody,
        Self::HeaderNotFlushed,
        Self::MapUnproved,
        Self::RingFreedEarly,
        Self::RingNotRepaired,
        Self::HomeBeforeFlush,
        Self::WriteBackBeforeFlush,
        Self::CleanBeforeFlush,
        Self::StaleWriteBack,
        Self::TwoInFlight,
        Self::SyncNotFlushed,
        Self::StampsRepeat,
        Self::AppendedTooSoon,
        Self::MovedOverNewer,
        Self::MoveUnderNewer,
        Self::ChangedCopyKept,
        Self::RecordBeforeImage,
        Self::DoublewriteBeforeFlush,
        Self::DoublewriteFreedEarly,
        Self::DoublewriteNotMended,
        Self::ChecksumsUnseeded,
        Self::FlushInCaller,
        Self::FailureNotRemembered,
        Self::OnlyCopyVoided,
        Self::FailedHomeKept,
        Self::RecoveryUnflushed,
        Self::RingFromZero,
        Self::FenceOpen,
        Self::DrainNotAwaited,
        Self::GrowthInMemoryFirst,
        Self::EpochUnchecked,
        Self::LossUnrecorded,
        Self::LossForgotten,
        Self::FirstOpeningUnnamed,
        Self::ExtentsNotBlanked,
        Self::DropUnmarked,
    ];

    /// Those whose schedule random lives seldom meet. Each fails a test of its own:
    ///
    /// - `MoveSurvives`: `hostile.rs`, `with_a_move_that_survives_an_older_version_is_the_pages_copy`
    /// - `CleanUnflushedRingOff`: `home_order.rs`,
    ///   `without_a_ring_a_page_whose_copy_counts_as_clean_too_soon_goes_back_in_time`
    /// - `AwaitingCopyUnmarked`: `home_order.rs`,
    ///   `with_copies_unmarked_that_await_their_homes_flush_a_synced_page_passes_for_lost`
    /// - `AbandonedInHaste`: `loss.rs`, `pages_on_their_way_to_an_ssd_given_up_in_haste_are_lost`
    /// - `ListPassesForExact`: `loss.rs`, `a_list_that_passes_for_exact_names_pages_that_the_hdd_has`
    /// - `DrainedPageDiscarded`: `home_order.rs`, `a_page_that_is_discarded_while_it_is_drained_is_torn`
    /// - `MarkOutlivesHeaders`: `map_marks.rs`, `a_mark_that_outlives_its_headers_passes_for_damage`
    /// - `FailedMendFinal`: `home_order.rs`, `with_a_failed_mending_that_is_final_the_store_refuses_for_ever`
    /// - `CleanerSleeps`: `log_gate.rs`, `a_cleaner_that_sleeps_out_its_pause_holds_a_request_up`
    /// - `OpeningGrows`: `growth.rs`, `an_opening_that_grows_the_hdd_fails_on_a_full_disk`
    /// - `SlackGivenAway`: `full_disk.rs`, `growth_and_new_spaces_leave_the_manifest_its_slack`
    /// - `AttachInDoubt`: `loss.rs`, `an_ssd_whose_return_may_be_recorded_is_not_formatted_once_more`
    /// - `HomesTrusted`: `failed_flush.rs`, `after_a_failed_hdd_flush_a_page_reads_as_it_was_written`
    /// - `RewriteWaits`: `slots/recovered.rs`, `without_the_rule_the_rewrite_waits_for_ever`
    /// - `EndsBySoundHomes`: `ends.rs`, `the_last_page_is_never_missing_when_its_home_rots`
    /// - `MisplacedMissing`: `ends.rs`, `a_home_with_another_pages_image_is_corrupt`
    /// - `BlankByLooks`: `growth.rs`, `room_whose_zeroes_a_failed_flush_lost_is_made_blank_again`
    /// - `KilledTrusted`: `failed_flush.rs`,
    ///   `an_ssd_flush_that_failed_right_before_a_kill_costs_no_synced_version`
    /// - `AttachedUnchecked`: `attach.rs`, `a_device_with_data_further_in_is_refused`
    /// - `UnreadableIsEmpty`: `unreadable.rs`,
    ///   `after_a_crash_what_is_not_known_is_refused_by_name_and_can_be_given_up`
    #[cfg(feature = "mutations")]
    pub const BY_TESTS: &[Self] = &[
        Self::MoveSurvives,
        Self::CleanUnflushedRingOff,
        Self::AwaitingCopyUnmarked,
        Self::AbandonedInHaste,
        Self::ListPassesForExact,
        Self::DrainedPageDiscarded,
        Self::EndsBySoundHomes,
        Self::MisplacedMissing,
        Self::BlankByLooks,
        Self::AttachedUnchecked,
        Self::KilledTrusted,
        Self::UnreadableIsEmpty,
        Self::OpeningGrows,
        Self::SlackGivenAway,
        Self::RewriteWaits,
        Self::AttachInDoubt,
        Self::HomesTrusted,
        Self::MarkOutlivesHeaders,
        Self::FailedMendFinal,
        Self::CleanerSleeps,
    ];
}
