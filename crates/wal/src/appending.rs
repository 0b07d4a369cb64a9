//! The file of the segment that is appended to.
//!
//! A file that grows costs a commit of the file system's journal for each flush. Overwriting what was written
//! before costs none, so a segment takes over such a file if there is one ([`Appending::over`]). Records then
//! go there in whole blocks, past the kernel's cache where that is possible. The last block is written again
//! with each record, as on a device: a sector has its old or its new contents, both with what was durable.

use pagetier_devio::files::DirFile;
use pagetier_devio::{IoBuf, check_file_bytes};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use std::io::{self, IoSlice};

/// What a device takes as a whole.
pub(crate) const BLOCK: usize = 4096;
/// The bytes that are copied and written at once.
const PIECE: usize = 256 << 10;

#[derive(Debug)]
pub(crate) struct Appending {
    file: Box<dyn DirFile>,
    /// Where the next record goes.
    end: u64,
    /// Whether space was asked for. A segment that an open found or created asks for it with its first
    /// record from then on, since a generation leaves such a segment behind before that.
    is_allocated: bool,
    /// Present if the file was written before.
    blocks: Option<Blocks>,
}

#[derive(Debug)]
struct Blocks {
    /// Begins with what the last block has, `used` bytes; for the next record.
    buf: IoBuf,
    used: usize,
    /// The file's length.
    len: u64,
    /// Writes go past the kernel's cache.
    is_direct: bool,
}

impl Appending {
    pub(crate) fn growing(file: Box<dyn DirFile>, end: u64, is_allocated: bool) -> Self {
        Self { file, end, is_allocated, blocks: None }
    }

    /// Appends to a file that has `len` bytes, all of them written before, and of which `whole` are the
    /// segment's.
    pub(crate) fn over(file: Box<dyn DirFile>, whole: &[u8], len: u64) -> Self {
        let last = &whole[whole.len() / BLOCK * BLOCK..];
        let mut buf = IoBuf::zeroed(BLOCK);
        buf.as_mut_slice()[..last.len()].copy_from_slice(last);
        let used = last.len();
        let is_direct = file.as_file().is_some_and(|file| fcntl_setfl(file, OFlags::DIRECT).is_ok());
        let blocks = Some(Blocks { buf, used, len, is_direct });
        Self { file, end: whole.len() as u64, is_allocated: true, blocks }
    }

    /// Appends and makes durable. The file gets the space that a segment has, `allocated` bytes, unless it
    /// was asked for.
    pub(crate) fn append(&mut self, bytes: &[u8], allocated: u64) -> io::Result<()> {
        if allocated > 0 && !std::mem::replace(&mut self.is_allocated, true) {
            let _ = self.file.allocate(allocated);
        }
        if let Some(blocks) = &mut self.blocks {
            blocks.append(&*self.file, self.end, bytes)?;
        } else {
            self.file.write_at(self.end, bytes)?;
            self.file.sync_data()?;
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Ends the segment: the file gives back what its records do not take.
    pub(crate) fn cut(&self) {
        let _ = self.file.set_len(self.end);
    }
}

impl Blocks {
    /// Appends at `end` and makes durable. After an error the next call begins as this one did.
    fn append(&mut self, file: &dyn DirFile, end: u64, bytes: &[u8]) -> io::Result<()> {
        let used = self.used;
        if used + bytes.len() <= PIECE {
            return self.append_piece(file, end, bytes, ReadWriteFlags::DSYNC);
        }
        // In pieces: a copy of a whole batch would take its memory once more. None but the last call waits
        // for the device's flush, which covers all of them.
        let begins = self.buf.as_slice()[..used].to_vec();
        let (mut at, mut rest) = (end, bytes);
        let mut written = Ok(());
        while written.is_ok() && !rest.is_empty() {
            let (piece, later) = rest.split_at(rest.len().min(PIECE - self.used));
            written = self.append_piece(file, at, piece, ReadWriteFlags::empty());
            (at, rest) = (at + piece.len() as u64, later);
        }
        let durable = written.and_then(|()| file.sync_data());
        if durable.is_err() {
            self.buf.as_mut_slice()[..used].copy_from_slice(&begins);
            self.used = used;
        }
        durable
    }

    /// Appends what fits into the buffer; `flags` say whether that is durable afterwards.
    fn append_piece(
        &mut self,
        file: &dyn DirFile,
        at: u64,
        piece: &[u8],
        flags: ReadWriteFlags,
    ) -> io::Result<()> {
        let used = self.used + piece.len();
        let filled = self.fill(piece);
        self.write(file, at / BLOCK as u64 * BLOCK as u64, filled, flags)?;
        // Not before the write has succeeded: the next one must have the same beginning.
        let last = used / BLOCK * BLOCK..used;
        self.used = last.len();
        self.buf.as_mut_slice().copy_within(last, 0);
        Ok(())
    }

    /// Puts `bytes` behind what the last block has, and zeroes behind them. Returns the length of the blocks.
    fn fill(&mut self, bytes: &[u8]) -> usize {
        let used = self.used + bytes.len();
        let filled = used.next_multiple_of(BLOCK);
        if self.buf.len() < filled {
            let mut larger = IoBuf::zeroed(filled);
            larger.as_mut_slice()[..self.used].copy_from_slice(&self.buf.as_slice()[..self.used]);
            self.buf = larger;
        }
        let buf = &mut self.buf.as_mut_slice()[..filled];
        buf[self.used..used].copy_from_slice(bytes);
        buf[used..].fill(0);
        filled
    }

    /// Writes the first `filled` bytes.
    fn write(&mut self, file: &dyn DirFile, at: u64, filled: usize, flags: ReadWriteFlags) -> io::Result<()> {
        let blocks = &self.buf.as_slice()[..filled];
        if let Some(real) = file.as_file().filter(|_| self.is_direct) {
            let end = at + blocks.len() as u64;
            check_file_bytes(end).map_err(io::Error::other)?;
            let direct = || pwritev2(real, &[IoSlice::new(blocks)], at, flags);
            match (end <= self.len).then(direct) {
                Some(Ok(written)) if written == blocks.len() => return Ok(()),
                // If the file grows, only a part was written, or the file system or the kernel does not
                // support this: write all of it the usual way, now and from now on.
                None | Some(Ok(_) | Err(Errno::INTR | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS)) => {
                    self.is_direct = false;
                    fcntl_setfl(real, OFlags::empty())?;
                }
                Some(Err(error)) => return Err(error.into()),
            }
        }
        file.write_at(at, blocks)?;
        if flags.is_empty() { Ok(()) } else { file.sync_data() }
    }
}
