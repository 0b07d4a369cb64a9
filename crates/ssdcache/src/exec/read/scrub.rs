//! Verifies a slot or a home, and repairs it from the other copy if there is one. The caller sets the pace.

use crate::exec::Core;
use crate::exec::io::single::read_one;
use crate::exec::read::fetch::SlotHold;
use crate::exec::tier::SsdTier;
use crate::format::map::Entry;
use pagetier_bufpool::TierError;
use pagetier_devio::task::Boxed;
use pagetier_devio::{IoBuf, IoClass};
use pagetier_page::{Defect, HEADER_BYTES, Header, Lsn, PageId};
use pagetier_policy::SlotId;

/// The number of reads of a bad home before it counts as bad: a write of the same page may interfere.
const READS_MAX: usize = 3;

/// The outcome of checking one copy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Checked {
    /// The page whose slot or home was checked.
    pub page: PageId,
    /// What is wrong, naming page, device and offset; `None`: the copy is sound.
    pub error: Option<TierError>,
    /// Whether the damage was repaired.
    pub repaired: bool,
    /// If the page's newest version is lost, the log position from which redo would bring it back.
    pub redo_from: Lsn,
}

impl Checked {
    fn fine(page: PageId) -> Self {
        Self { page, error: None, repaired: false, redo_from: Lsn(0) }
    }
}

/// The state of a home.
enum HomeFound {
    Sound(IoBuf),
    /// It holds nothing.
    Unwritten(TierError),
    Bad(TierError),
}

impl SsdTier {
    /// Verifies the copy in slot number `slot`; see [`Checked`]. With `repair`, a bad clean copy is given up
    /// if the page's home is sound. `None`: there is no copy. Cancel-safe.
    pub fn scrub_slot(&self, slot: u32, repair: bool) -> Boxed<'_, Option<Checked>> {
        Box::pin(async move {
            let (core, slot) = (&*self.core, SlotId(slot));
            if !core.has_slots() || slot.0 >= core.layout().slots {
                return None;
            }
            let Entry { page, stamp, clean } = core.state.lock().slots.begin_check(slot)?;
            let Err(error) = core.read_copy(SlotHold { core, slot }, page, stamp).await else {
                return Some(Checked::fine(page));
            };
            let (holds, redo_from) = {
                let state = core.state.lock();
                (state.slots.holds(page, stamp), state.slots.lsn_of(page))
            };
            if !holds {
                // The page has another version by now.
                return Some(Checked::fine(page));
            }
            tracing::error!(error = %pagetier_devio::Causes(&error), "scrub found a bad copy on the SSD");
            let mut repaired = false;
            if clean && repair && matches!(core.look_home(page).await, Some(HomeFound::Sound(_))) {
                core.state.lock().slots.drop_bad_copy(page, slot, core.now());
                repaired = true;
            }
            Some(Checked { page, error: Some(error), repaired, redo_from })
        })
    }

    /// Verifies the home of `page` by its checksum and id, and by its clean copy on the SSD if it has one.
    /// With `repair`, a bad home is rewritten from the copy on the SSD; the call must then be driven to
    /// completion.
    pub fn scrub_home(&self, page: PageId, repair: bool) -> Boxed<'_, Checked> {
        Box::pin(async move {
            let core = &*self.core;
            let copy = core.state.lock().slots.copy_of(page);
            let error = match core.look_home(page).await {
                None => return Checked::fine(page),
                Some(HomeFound::Sound(image)) => match core.differs(page, &image).await {
                    Some(error) => error,
                    None => return Checked::fine(page),
                },
                // An unwritten home despite a clean copy is a lost write.
                Some(HomeFound::Unwritten(error)) if copy.is_some_and(|(_, clean)| clean) => error,
                Some(HomeFound::Unwritten(_)) => return Checked::fine(page),
                Some(HomeFound::Bad(error)) => error,
            };
            tracing::error!(error = %pagetier_devio::Causes(&error), "scrub found a bad page on the HDD");
            let mut repaired = false;
            if repair && core.state.lock().slots.copy_of(page).is_some() {
                let copied = core.copy_pages_home(&[page]).await;
                repaired = !copied.home.is_empty()
                    && matches!(core.look_home(page).await, Some(HomeFound::Sound(_)));
            }
            let redo_from = core.state.lock().slots.lsn_of(page);
            Checked { page, error: Some(error), repaired, redo_from }
        })
    }
}

impl Core {
    /// `None`: the page does not exist.
    async fn look_home(&self, page: PageId) -> Option<HomeFound> {
        let mut found = None;
        for _ in 0..READS_MAX {
            // A home in the middle of its write reads as torn: a false alarm.
            self.when(|state| !state.home.is_writing(page)).await;
            let offset = self.homes.source(page)?;
            let (buf, result) = read_one(&self.hdd, offset, self.buffer(), IoClass::Recovery).await;
            let one = match result {
                Ok(()) => match self.check(buf.as_slice(), page, None) {
                    Ok(_) => return Some(HomeFound::Sound(buf)),
                    Err(defect) => {
                        let unwritten = self.is_unwritten(page, defect);
                        let error = self.corrupt(page, &self.hdd, offset, defect);
                        if unwritten { HomeFound::Unwritten(error) } else { HomeFound::Bad(error) }
                    }
                },
                Err(source) => {
                    let unwritten = self.is_unwritten_end(page, &source);
                    let error = TierError::Device { page, source };
                    if unwritten { HomeFound::Unwritten(error) } else { HomeFound::Bad(error) }
                }
            };
            found = Some(one);
        }
        found
    }

    /// The error of a sound home that differs from its clean copy on the SSD: a home write was reported as
    /// complete but never landed.
    async fn differs(&self, page: PageId, home: &IoBuf) -> Option<TierError> {
        let (slot, entry) = {
            let mut state = self.state.lock();
            let (slot, _) = state.slots.copy_of(page).filter(|(_, clean)| *clean)?;
            (slot, state.slots.begin_check(slot)?)
        };
        let copy = self.read_copy(SlotHold { core: self, slot }, page, entry.stamp).await.ok()?;
        let (a, b) = (home.as_slice(), copy.as_slice());
        let same = Header::peek(a).lsn == Header::peek(b).lsn && a[HEADER_BYTES..] == b[HEADER_BYTES..];
        let now = self.state.lock().slots.copy_of(page);
        // If the copy was clean before the home was read and still is, the home must hold the same version.
        let unchanged = {
            let state = self.state.lock();
            // Some policies keep the copy of a page changed in memory until the page has been written home.
            now == Some((slot, true)) && state.slots.holds(page, entry.stamp) && !state.home.is_writing(page)
        };
        if same || !unchanged {
            return None;
        }
        let (expected, found) = (entry.stamp, Header::peek(a).stamp);
        let offset = self.homes.offset(page)?;
        Some(self.corrupt(page, &self.hdd, offset, Defect::WrongStamp { expected, found }))
    }
}
