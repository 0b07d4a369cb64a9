//! Deliberately broken protocols for the simulator's mutation check: a campaign that does not notice them
//! proves nothing.
//!
//! Requires the feature `mutations`, which stores are built without. `seam.rs` implements each.

/// One rule of the protocol (`docs/recovery.md`) that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(hidden)]
pub enum Mutation {
    /// R: home writes leave no record in the journal.
    NoJournal,
    /// R: the pool's home writes leave no record, so old copies of their pages come back. Write-backs still
    /// leave records, which recovery uses for other purposes too.
    HomeUnrecorded,
    /// The journal is free up to a checkpoint's begin, even if pages with older records were still on their
    /// way home then, so the map may still name their copies.
    HomingForgotten,
    /// The journal's space is freed when a checkpoint begins, not when it is durable.
    JournalFreedEarly,
    /// Recovery counts what a slot of the zone held before the checkpoint.
    WatermarkIgnored,
    /// N: a slot given up by a rewrite is reused before the rewrite is durable.
    SlotReusedEarly,
    /// N: a page is rewritten in its slot.
    RewriteInPlace,
    /// Z: slots outside the zone are written.
    ZoneIgnored,
    /// Z: while a checkpoint is being written, slots of the old zone that are not in the new one are written.
    NextZoneIgnored,
    /// A checkpoint's header may be durable before its body and the slots that it vouches for: one flush
    /// follows both instead of each. (Writing and flushing the header before the body would be harmless: the
    /// header's checksum of the body invalidates the checkpoint until the body is whole, the flush between
    /// them covers every slot that was complete at its capture, and zone and journal change only after the
    /// flush that follows both.)
    HeaderBeforeBody,
    /// The new zone is in force before the checkpoint's header is durable.
    HeaderNotFlushed,
    /// A checkpoint's watermark is that of the end of its capture, not of its begin: what is written
    /// meanwhile, to slots that were captured before, does not count.
    WatermarkLate,
    /// An opening uses the newest sound checkpoint, even if there is proof that a newer one was in force.
    /// Close a store, or crash it after a checkpoint; flip a bit of the newest map's body or of both its
    /// headers; open: older pages, no error.
    MapUnproved,
    /// The mark of a failed checkpoint outlives its headers. Let the write of a mark report an error but
    /// land; cut the power after the next checkpoint has wiped the headers: the store does not open.
    MarkOutlivesHeaders,
    /// A ring entry is free once its home write has completed, without an HDD flush.
    RingFreedEarly,
    /// Recovery repairs no home page from the ring.
    RingNotRepaired,
    /// Home writes start before ring and journal are durable.
    HomeBeforeFlush,
    /// A slot is written home before its own content is durable: neither is it flushed before it is read, nor
    /// after its record was written. Leaving out the first flush alone would be harmless: the second also
    /// covers the slot, and precedes the home write.
    WriteBackBeforeFlush,
    /// A slot is clean once its home write has completed, without an HDD flush.
    CleanBeforeFlush,
    /// A write-back continues although its page has a newer version.
    StaleWriteBack,
    /// Several home writes of a page are in flight at once.
    TwoInFlight,
    /// `sync` does not flush.
    SyncNotFlushed,
    /// Every opening starts with the same stamp.
    StampsRepeat,
    /// N, under a policy that appends: a slot is given out in its turn although the HDD lacks its page's
    /// version.
    AppendedTooSoon,
    /// N, of second chances: a page's copy to the front counts although the page was rewritten meanwhile.
    MovedOverNewer,
    /// N, of second chances: a page's copy to the front counts although its source was dropped as bad and the
    /// page was written home since. Schedule (mv-fifo-gsc): a move is under way; a read finds its clean
    /// source bad; the page is changed and written home (during a drain or in another mode); the copy
    /// completes.
    MoveSurvives,
    /// N, of second chances: a page is copied to the front, under a larger stamp, although a newer version is
    /// on its way to a slot. Visible only under a policy that gives every page a second chance (`hostile:1`):
    /// a page is being rewritten when its old slot is judged.
    MoveUnderNewer,
    /// Write-through: a page that was written home keeps the copy of its previous version, whether or not a
    /// new one could be made.
    ChangedCopyKept,
    /// The record of a home write may be durable before its image, although the copy that it voids is the
    /// only one of its version.
    RecordBeforeImage,
    /// The doublewrite policy: home writes start before their records and the slots that back them are
    /// durable.
    DoublewriteBeforeFlush,
    /// The doublewrite policy: a slot is clean once its home write has completed, without an HDD flush.
    DoublewriteFreedEarly,
    /// The doublewrite policy: recovery repairs no homes from the slots that back them.
    DoublewriteNotRepaired,
    /// Checksums do not depend on the store. Visible on devices of another store that were overwritten with
    /// `force`: after a crash, its pages (same space and number, larger epochs) read as this store's at homes
    /// that were allocated and never written.
    ChecksumsUnseeded,
    /// A flush runs in its caller's future: a `sync` is dropped while its flush runs, the flush fails, and
    /// the next `sync` succeeds.
    FlushInCaller,
    /// A flush is left out although it has something to make durable: changes that complete while a flush
    /// runs count as covered by it.
    FlushCoversLater,
    /// The images of a batch whose home writes never began, because its records could not be made durable,
    /// are given up with the next flush of the HDD: take the SSD back, write another page home, cut the
    /// power.
    UnbegunForgotten,
    /// The next opening forgets a failed flush: it treats what it can read as durable, and a power cut loses
    /// it.
    FailureNotRemembered,
    /// An opening considers only failed flushes that the manifest notes. Kill the process right after a flush
    /// has failed, before the note is written; open; cut the power.
    KilledTrusted,
    /// Without a ring, a copy of a home write that is not durable counts as clean: it is evicted, or its page
    /// is written home again; the power is cut; and the SSD is given up or the slot reused.
    CleanUnflushedRingOff,
    /// Without a ring, the record of a home write voids the only copy of the previous version, which the HDD
    /// lacks: degraded SSD, power cut.
    OnlyCopyVoided,
    /// A drain does not hold its pages: one is discarded while its home write is in flight, the power is cut,
    /// and nothing can repair the torn home.
    DrainedPageDiscarded,
    /// A home whose write failed once is never repaired: its page is discarded, the ring fills up behind its
    /// image, and the store refuses writes forever.
    FailedHomeKept,
    /// A home that could not be repaired when its ring place was needed makes the store refuse writes for
    /// good, even if the next attempt would succeed.
    FailedRepairFinal,
    /// A cleaner that paused after a failure of the log or a device sleeps through its pause, although a
    /// request needs it. Let the log fail for long; then let it work, and request a frame.
    CleanerSleeps,
    /// Nothing is flushed before a recovery's first write: a kill between a ring write and its flush, a
    /// recovery that rewrites the home, a power cut. Leaving out only the recovery's own flushes would be
    /// harmless in a whole store, since an opening first marks both devices and flushes the marks. So this
    /// also leaves out the marks of openings (but not of closes), and the check for them.
    RecoveryUnflushed,
    /// A recovered ring continues at place 0 and keeps outdated images: an older image outlives the newest
    /// one, the home becomes corrupt, and a recovery repairs it with the older version.
    RingFromZero,
    /// A dropped store continues to start I/O. Visible when it is reopened at once: the first instance's
    /// cleaner or maintenance overwrites what the second has written with an older version.
    FenceOpen,
    /// A store's devices and locks are free as soon as it is dropped. Visible with a slow home write under
    /// way at the drop: the store is reopened and writes a newer version of the page, and the old write lands
    /// last.
    DrainNotAwaited,
    /// Growth: extents are reserved in memory before HDD and manifest have them. Let a growth fail for lack
    /// of space, continue allocating, sync, crash.
    GrowthInMemoryFirst,
    /// Epochs: an opening does not compare those of manifest, HDD and SSD. Restore an older copy of a device
    /// after a close.
    EpochUnchecked,
    /// Losses: the manifest does not list what is lost with an SSD that is given up. Give it up, or accept
    /// its loss; then crash or drop the opening.
    LossUnrecorded,
    /// Losses: an opening forgets unacknowledged ones. Give the SSD up, close, open.
    LossForgotten,
    /// A first opening formats devices before the manifest names their ids. Drop it at every await, open
    /// again.
    FirstOpeningUnnamed,
    /// An SSD is formatted again after an exchange could not be recorded, although the manifest may name the
    /// one formatted first. Switch the SSD off; let the save that takes it back report failure but take
    /// effect; take it back once more; crash.
    AttachInDoubt,
    /// A checkpoint does not mark copies that await their homes' flush. The flush makes one of them clean,
    /// its slot is given out, and a power cut tears the new image: the page is wrongly reported as lost.
    AwaitingCopyUnmarked,
    /// The SSD is given up while writes are under way, and pages in memory are not marked dirty again: pages
    /// that could be saved are lost.
    AbandonedInHaste,
    /// A list of losses claims to be exact although the HDD may have some of its pages.
    ListPassesForExact,
    /// After a failed flush of the HDD, homes are trusted: a device that reverted what it could not flush
    /// returns older versions.
    HomesTrusted,
    /// An opening needs more space on the HDD. Fill the disk, close, open.
    OpeningGrows,
    /// Growth and new spaces use the manifest's slack, so a store on a full disk cannot note a drop or a
    /// close.
    SlackGivenAway,
    /// A change is appended to the manifest although an earlier append failed and may have taken effect.
    AppendedInDoubt,
    /// The store's directory is looked up by its path at each use. Rename it, or create another there, and
    /// save the manifest.
    DirectoryByName,
    /// A save of the manifest that its caller does not wait for counts as not made. Drop the future that
    /// marks a space as dropped; sync; crash.
    SaveForgotten,
    /// A freed page's copies are dropped before the manifest lists it as free. Let the manifest fail, and
    /// crash.
    FreedBeforeRecord,
    /// A reused page is recorded as existing before it is written. Crash: it reads as before it was freed.
    ReuseRecordedEarly,
    /// A reused page is never recorded as existing. Sync, and crash.
    ReuseUnrecorded,
    /// The manifest does not list a freed page as free. Free it, and crash: it exists.
    FreeUnrecorded,
    /// Extents are given back while their page numbers can still be reused: a page in use loses its home.
    GivenBackInUse,
    /// Extents beyond a space's last page are given back while pages can be created in them.
    TailInUse,
    /// A growth for a page far away takes an extent at a time, and keeps them if there is no room for the
    /// rest. Create a page beyond what the HDD can hold.
    FailedGrowthKept,
    /// A removal waits for guards while it holds the manifest's mutex.
    GuardsAwaitedLocked,
    /// The stamp up to which a backup claims to have copied is larger than the one drawn before its pages
    /// were read. Write a page meanwhile: the next backup omits it.
    BackupUptoLate,
    /// A backup does not wait for writes in flight, which have stamps that the next backup skips. Begin it
    /// while a page that has an older copy on the SSD is being written to the ring.
    BackupReadsEarly,
    /// A backup does not make durable what it read. Write a page, without a sync, before a backup reads it;
    /// cut the power after the backup: the store goes back to a version that the next backup skips.
    BackupUnsynced,
    /// A page that is freed and created again while a backup reads other pages counts as unchanged: the chain
    /// keeps a version that was replaced before the backup began.
    FreedMeanwhileKept,
    /// A backup skips every page with an old stamp, also one that the last backup had free. Reuse the number
    /// and discard the page: its home shows a version from before the free, which the chain lacks.
    FreedBeforeSkipped,
    /// A backup continues a chain from before a loss: the chain has versions that the store lost.
    LossKeepsChain,
    /// A backup ends with what it has although pages were lost meanwhile: it lacks versions that the store
    /// saved from memory. Give up the SSD while a backup runs.
    LossMeanwhileIgnored,
    /// An exchange does not record the new cache device in the manifest. Replace the SSD, and crash: the
    /// store opens with the previous one.
    ExchangeUnrecorded,
    /// New extents are not formatted: a page that was never written reads as what another space or store left
    /// there.
    ExtentsNotFormatted,
    /// A rewrite on a full SSD waits for a free slot, even if a recovery left none and none will come.
    RewriteWaits,
    /// A space is dropped without being marked first. Drop the future of `drop_space`, or crash; count the
    /// extents after the next opening.
    DropUnmarked,
    /// After a crash a space ends after its last sound home instead of the last one that is not blank.
    /// Corrupt the home of a space's last page, and crash: the page is missing, not corrupt.
    EndsBySoundHomes,
    /// A home with another page's image reads as never written. Misdirect a home write to it.
    MisplacedMissing,
    /// A home of zeroes reads as never written although it was formatted. Zero the home of a page.
    ZeroesAreAbsence,
    /// A growth formats no homes that read as formatted. Let the flush after one growth's homes fail,
    /// reopen, let another growth take the same space, cut the power: the earlier contents are back, at homes
    /// of pages that were never written.
    FormattedByLooks,
    /// Of a device that is attached to an open store, or replaces a lost SSD, only the first blocks are
    /// checked. Leave another program's data further in.
    AttachedUnchecked,
    /// A page whose newest version is gone after a failed flush does not fall back to the one before it:
    /// sync, write again, let the flush fail and revert, readmit the SSD.
    PredecessorForgotten,
    /// A readmission does not flush the HDD before it judges the copies: damaged copies of home writes that
    /// are not durable yet pass for lost pages.
    ReadmittedOverVolatileHomes,
    /// A copy counts as damaged after one bad read. Let a transfer corrupt two reads of a sound only copy.
    FirstReadBelieved,
    /// A position handed out for the loss of the SSD is not recorded. Remove the log before it, crash, lose
    /// the SSD.
    RedoUnrecorded,
    /// After a crash, unreadable slots of the zone and places of journal and ring count as empty. Let one of
    /// them fail all reads.
    UnreadableIsEmpty,
    /// A save of a manifest on the HDD writes the area that is the manifest. Cut the power in it.
    ManifestInPlace,
    /// The headers of a manifest's area may be durable before its contents. Cut the power in a save.
    HeadersBeforeContents,
    /// The headers of a failed save of a manifest on the HDD stay while the next one writes its contents. Let
    /// the flush of headers fail, and cut the power while the next contents are written.
    FailedHeadersKept,
    /// The area of a manifest on the HDD that an opening found counts as durable. Let a flush fail after
    /// headers were written, kill the process, and cut the power in the next one's first save.
    FoundAreaTrusted,
}

impl Mutation {
    /// The mutations that the campaign catches.
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
        Self::WatermarkLate,
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
        Self::DoublewriteNotRepaired,
        Self::ChecksumsUnseeded,
        Self::FlushInCaller,
        Self::FlushCoversLater,
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
        Self::ExtentsNotFormatted,
        Self::DropUnmarked,
        Self::FreedBeforeRecord,
        Self::ReuseRecordedEarly,
        Self::ReuseUnrecorded,
        Self::FreeUnrecorded,
        Self::GivenBackInUse,
        Self::BackupUptoLate,
        Self::ExchangeUnrecorded,
        Self::ManifestInPlace,
        Self::HeadersBeforeContents,
    ];

    /// The mutations whose schedule random runs rarely produce. Each fails a test of its own:
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
    /// - `FailedRepairFinal`: `home_order.rs`,
    ///   `with_a_failed_repair_that_is_final_the_store_refuses_for_ever`
    /// - `CleanerSleeps`: `log_gate.rs`, `a_cleaner_that_sleeps_out_its_pause_holds_a_request_up`
    /// - `OpeningGrows`: `growth.rs`, `an_opening_that_grows_the_hdd_fails_on_a_full_disk`
    /// - `SlackGivenAway`: `full_disk.rs`, `growth_and_new_spaces_leave_the_manifest_its_slack`
    /// - `TailInUse`: `sparse.rs`, `extents_beyond_the_last_page_given_back_in_use_have_two_owners`
    /// - `FailedGrowthKept`: `sparse.rs`, `a_failed_growth_that_keeps_its_extents_takes_the_disk`
    /// - `GuardsAwaitedLocked`: `waiting.rs`, `a_removal_that_waits_for_guards_locked_never_ends`
    /// - `AppendedInDoubt`: `records.rs`, `a_record_appended_in_doubt_gives_an_extent_twice`
    /// - `DirectoryByName`: `world/paths.rs`, `a_moved_directory_stays_the_stores`
    /// - `SaveForgotten`: `saves.rs`, `a_dropped_removal_is_undone_by_the_next_sync`
    /// - `AttachInDoubt`: `loss.rs`, `an_ssd_whose_return_may_be_recorded_is_not_formatted_once_more`
    /// - `HomesTrusted`: `failed_flush.rs`, `after_a_failed_hdd_flush_a_page_reads_as_it_was_written`
    /// - `RewriteWaits`: `slots/recovered.rs`, `without_the_rule_the_rewrite_waits_for_ever`
    /// - `EndsBySoundHomes`: `ends.rs`, `the_last_page_is_never_missing_when_its_home_rots`
    /// - `MisplacedMissing`: `ends.rs`, `a_home_with_another_pages_image_is_corrupt`
    /// - `ZeroesAreAbsence`: `zeroed.rs`, `a_page_whose_home_turns_to_zeroes_is_corrupt`
    /// - `FormattedByLooks`: `growth.rs`, `room_whose_format_a_failed_flush_lost_is_formatted_again`
    /// - `KilledTrusted`: `failed_flush.rs`,
    ///   `an_ssd_flush_that_failed_right_before_a_kill_costs_no_synced_version`
    /// - `AttachedUnchecked`: `attach.rs`, `a_device_with_data_further_in_is_refused`
    /// - `UnreadableIsEmpty`: `unreadable.rs`,
    ///   `after_a_crash_what_is_not_known_is_refused_by_name_and_can_be_given_up`
    /// - `PredecessorForgotten`: `readmission.rs`,
    ///   `without_a_predecessor_to_fall_back_to_synced_versions_are_lost`
    /// - `ReadmittedOverVolatileHomes`: `readmission.rs`,
    ///   `over_homes_that_are_not_flushed_a_damaged_copy_passes_for_a_lost_page`
    /// - `FirstReadBelieved`: `readmission.rs`, `after_one_bad_read_a_sound_only_copy_passes_for_lost`
    /// - `RedoUnrecorded`: `redo_position.rs`, `a_position_that_was_not_recorded_is_unknown_after_the_loss`
    /// - `BackupReadsEarly`: `backup_rules.rs`, `a_backup_that_reads_a_page_being_written_loses_a_version`
    /// - `BackupUnsynced`: `backup_rules.rs`, `an_unsynced_backup_is_ahead_of_the_store_after_a_power_cut`
    /// - `FreedMeanwhileKept`: `backup_rules.rs`,
    ///   `a_page_freed_and_created_again_during_a_backup_is_not_older_than_before_it`
    /// - `FreedBeforeSkipped`: `backup_rules.rs`,
    ///   `a_page_that_a_discard_shows_as_before_its_free_is_in_the_chain`
    /// - `LossKeepsChain`: `backup_rules.rs`, `a_chain_that_outlives_a_loss_is_not_the_store`
    /// - `LossMeanwhileIgnored`: `backup_rules.rs`,
    ///   `a_backup_that_ignores_a_loss_meanwhile_lacks_pages_that_were_saved`
    /// - `UnbegunForgotten`: `unbegun.rs`, `images_that_are_given_up_cost_the_only_copies`
    /// - `FailedHeadersKept`: `manifest/areas.rs`, `headers_of_a_failed_save_name_half_written_contents`
    /// - `FoundAreaTrusted`: `manifest/areas.rs`, `an_area_that_was_found_may_not_be_durable`
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
        Self::ZeroesAreAbsence,
        Self::FormattedByLooks,
        Self::AttachedUnchecked,
        Self::KilledTrusted,
        Self::UnreadableIsEmpty,
        Self::PredecessorForgotten,
        Self::ReadmittedOverVolatileHomes,
        Self::FirstReadBelieved,
        Self::RedoUnrecorded,
        Self::OpeningGrows,
        Self::SlackGivenAway,
        Self::TailInUse,
        Self::FailedGrowthKept,
        Self::GuardsAwaitedLocked,
        Self::AppendedInDoubt,
        Self::DirectoryByName,
        Self::SaveForgotten,
        Self::RewriteWaits,
        Self::AttachInDoubt,
        Self::HomesTrusted,
        Self::MarkOutlivesHeaders,
        Self::FailedRepairFinal,
        Self::CleanerSleeps,
        Self::BackupReadsEarly,
        Self::BackupUnsynced,
        Self::FreedMeanwhileKept,
        Self::FreedBeforeSkipped,
        Self::LossKeepsChain,
        Self::LossMeanwhileIgnored,
        Self::UnbegunForgotten,
        Self::FailedHeadersKept,
        Self::FoundAreaTrusted,
    ];
}
