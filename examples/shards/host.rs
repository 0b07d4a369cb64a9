//! A process: the stores that it has open, and the requests to them. It ends when its standard input does,
//! and closes its stores first, so that none needs a recovery when the program that started it is killed.

use crate::{Cli, Failure};
use pagetier::{DrainOptions, Error, PageId, PageStore, SpaceId, SsdMode};
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, RwLock};

struct Shard {
    store: PageStore,
    pages: SpaceId,
}

struct Host {
    cli: Cli,
    no: u32,
    /// A request holds the shard's lock shared, and closing takes it exclusively: so a shard is closed
    /// between requests, and each one that comes later finds that it is gone.
    shards: Vec<RwLock<Option<Shard>>>,
    /// Stores are opened and closed, and the memory divided, one at a time.
    dividing: Mutex<()>,
}

/// Serves until standard input ends.
pub(crate) async fn run(cli: Cli, no: u32) -> Result<(), Failure> {
    let listener = UnixListener::bind(cli.host_dir(no).join("socket"))?;
    let shards = (0..cli.shards).map(|_| RwLock::new(None)).collect();
    let host = Arc::new(Host { cli, no, shards, dividing: Mutex::new(()) });
    let accepting = tokio::spawn({
        let host = Arc::clone(&host);
        async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&host).serve(stream));
            }
        }
    });
    // A thread of its own reads: the runtime's input cannot be cancelled.
    let (end, ended) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = end.send(());
    });
    let _ = ended.await;
    accepting.abort();
    for shard in 0..host.cli.shards {
        host.close(shard).await?;
    }
    Ok(())
}

impl Host {
    /// Answers the requests of one connection, a line each: `ok …`, `elsewhere`, or `error …`.
    async fn serve(self: Arc<Self>, stream: UnixStream) {
        let (from, mut to) = stream.into_split();
        let mut lines = BufReader::new(from).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let answer = match self.answer(&line).await {
                Ok(Some(value)) => format!("ok {value}\n"),
                Ok(None) => "elsewhere\n".to_owned(),
                Err(failure) => format!("error {}\n", failure.to_string().replace('\n', " ")),
            };
            if to.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    /// Carries a request out. `None`: the shard is not here.
    async fn answer(&self, line: &str) -> Result<Option<u64>, Failure> {
        let mut words = line.split(' ');
        let what = words.next().unwrap_or_default();
        let numbers = words.map(str::parse::<u64>).collect::<Result<Vec<_>, _>>()?;
        let shard = |no: u64| {
            let known = u32::try_from(no).ok().filter(|no| *no < self.cli.shards);
            known.ok_or_else(|| Failure::from(format!("there is no shard {no}")))
        };
        match (what, numbers[..].as_ref()) {
            ("get", &[no, page]) => self.get(shard(no)?, u32::try_from(page)?).await,
            ("put", &[no, page, version]) => self.put(shard(no)?, u32::try_from(page)?, version).await,
            ("room", &[]) => self.divide_memory(1).await.map(Some),
            ("settle", &[]) => self.divide_memory(0).await.map(Some),
            ("open", &[no]) => self.open(shard(no)?).await.map(Some),
            ("drain", &[no]) => self.drain(shard(no)?).await,
            ("leave", &[no]) => self.leave(shard(no)?).await,
            ("close", &[no]) => self.close(shard(no)?).await,
            _ => Err(format!("no such request: {line}").into()),
        }
    }

    async fn get(&self, shard: u32, no: u32) -> Result<Option<u64>, Failure> {
        let held = self.shards[shard as usize].read().await;
        let Some(Shard { store, pages }) = held.as_ref() else { return Ok(None) };
        match store.get(PageId::new(*pages, no)).await {
            Ok(page) => content::read(&page, shard, no).map(Some),
            // Not written yet.
            Err(Error::NoSuchPage { .. }) => Ok(Some(0)),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a page; it is durable when this returns.
    async fn put(&self, shard: u32, no: u32, version: u64) -> Result<Option<u64>, Failure> {
        let held = self.shards[shard as usize].read().await;
        let Some(Shard { store, pages }) = held.as_ref() else { return Ok(None) };
        let mut page = store.get_or_create(PageId::new(*pages, no)).await?;
        content::write(&mut page, shard, no, version);
        drop(page);
        store.sync().await?;
        Ok(Some(version))
    }

    /// Gives each open store an equal share of the memory, with room for so many others. Returns the share.
    async fn divide_memory(&self, others: u64) -> Result<u64, Failure> {
        let _dividing = self.dividing.lock().await;
        let mut open = others;
        for shard in &self.shards {
            open += u64::from(shard.read().await.is_some());
        }
        let share = (self.cli.memory_mib << 20) / open.max(1);
        for shard in &self.shards {
            if let Some(shard) = shard.read().await.as_ref() {
                shard.store.resize_pool(share).await?;
            }
        }
        Ok(share)
    }

    /// Opens a shard. Without its part of the SSD here, it comes from another process, which has drained its
    /// own: a blank part may take its place, and nothing may be lost.
    async fn open(&self, shard: u32) -> Result<u64, Failure> {
        let share = self.divide_memory(1).await?;
        let mut place = self.shards[shard as usize].write().await;
        if place.is_some() {
            return Err(format!("shard {shard} is open here").into());
        }
        let ssd = self.cli.ssd(self.no, shard);
        let store = PageStore::builder()
            .directory(self.cli.host_dir(self.no).join(format!("shard-{shard}")))
            .hdd(self.cli.homes(shard))
            .manifest(pagetier::options::OnHdd { bytes_max: 1 << 20, ..Default::default() })
            .accept_ssd_loss(!ssd.exists())
            .ssd(ssd)
            .ssd_bytes((self.cli.ssd_mib << 20) / u64::from(self.cli.shards))
            .pool_bytes(share)
            .open()
            .await
            .map_err(|error| format!("shard {shard}: {error}"))?;
        if let Some(loss) = store.ssd().loss() {
            if loss.pages() > 0 {
                return Err(format!("shard {shard}: {} pages were lost with an SSD", loss.pages()).into());
            }
            store.ssd().acknowledge_loss().await?;
        }
        let pages = match store.spaces().find("pages") {
            Some(pages) => pages,
            None => store.spaces().create("pages").await?,
        };
        *place = Some(Shard { store, pages });
        Ok(share)
    }

    /// Writes home what only the SSD has, while requests go on, and keeps it so. Returns how many pages.
    async fn drain(&self, shard: u32) -> Result<Option<u64>, Failure> {
        let held = self.shards[shard as usize].read().await;
        let Some(Shard { store, .. }) = held.as_ref() else { return Ok(None) };
        store.ssd().set_mode(SsdMode::WriteThrough).await?;
        let report = store.ssd().drain(DrainOptions::new()).await;
        if report.left > 0 {
            // It stays here, and works as before.
            store.ssd().set_mode(SsdMode::WriteBack).await?;
            return Err(format!("shard {shard}: {} pages could not be drained", report.left).into());
        }
        Ok(Some(report.written))
    }

    async fn close(&self, shard: u32) -> Result<Option<u64>, Failure> {
        // Held until the store is closed: an open that follows must find it so.
        let mut place = self.shards[shard as usize].write().await;
        let Some(Shard { store, .. }) = place.take() else { return Ok(None) };
        store.close().await?;
        Ok(Some(0))
    }

    /// Closes a drained shard and gives its part of the SSD back. Which process has that part says where the
    /// shard is, so that a run after a crash finds it: it is removed only after the store is closed.
    async fn leave(&self, shard: u32) -> Result<Option<u64>, Failure> {
        let mut place = self.shards[shard as usize].write().await;
        let Some(Shard { store, .. }) = place.take() else { return Ok(None) };
        store.close().await?;
        std::fs::remove_file(self.cli.ssd(self.no, shard))?;
        Ok(Some(0))
    }
}

/// What is on a page: whose it is, and its version at both ends.
mod content {
    use crate::Failure;

    fn number(bytes: &[u8]) -> u64 {
        bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    pub(super) fn write(page: &mut [u8], shard: u32, no: u32, version: u64) {
        let end = page.len() - 8;
        page[..4].copy_from_slice(&shard.to_le_bytes());
        page[4..8].copy_from_slice(&no.to_le_bytes());
        page[8..16].copy_from_slice(&version.to_le_bytes());
        page[end..].copy_from_slice(&version.to_le_bytes());
    }

    pub(super) fn read(page: &[u8], shard: u32, no: u32) -> Result<u64, Failure> {
        let (first, last) = (number(&page[8..16]), number(&page[page.len() - 8..]));
        let whose = [number(&page[..4]), number(&page[4..8])];
        // A page that was created and never written is zero.
        let is_its_own = whose == [u64::from(shard), u64::from(no)] || first == 0;
        if first != last || !is_its_own {
            return Err(
                format!("page {no} of shard {shard} has versions {first} and {last} of {whose:?}").into()
            );
        }
        Ok(first)
    }
}
