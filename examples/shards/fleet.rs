//! The processes, where each shard is, and how one moves.

use crate::{Cli, Failure};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

pub(crate) struct Fleet {
    pub(crate) cli: Cli,
    processes: Mutex<Vec<Child>>,
    /// The process of each shard.
    places: Vec<AtomicU32>,
}

/// How long the steps of a move took.
pub(crate) struct Moved {
    pub(crate) drained: u64,
    pub(crate) drain: Duration,
    pub(crate) close: Duration,
    pub(crate) open: Duration,
}

impl Fleet {
    /// Starts the processes, and opens each shard where it was, or spread over all.
    pub(crate) async fn start(cli: Cli) -> Result<Self, Failure> {
        let mut processes = Vec::new();
        for no in 0..cli.processes {
            std::fs::create_dir_all(cli.host_dir(no))?;
            // A process of an earlier run that is about to end would answer there.
            let _ = std::fs::remove_file(cli.host_dir(no).join("socket"));
            let arguments = std::env::args_os().skip(1);
            let process = Command::new(std::env::current_exe()?)
                .args(arguments)
                .args(["--host", &no.to_string()])
                .stdin(Stdio::piped())
                // Ctrl-C on the terminal is for this process, which lets the others end in order.
                .process_group(0)
                .spawn()?;
            processes.push(process);
        }
        let places = (0..cli.shards).map(|shard| place_of(&cli, shard)).collect::<Result<_, _>>()?;
        let fleet = Self { cli, processes: Mutex::new(processes), places };
        fleet.open_all().await?;
        Ok(fleet)
    }

    pub(crate) fn place(&self, shard: u32) -> u32 {
        self.places[shard as usize].load(Ordering::Acquire)
    }

    /// Moves a shard to another process, and returns when it is open there.
    pub(crate) async fn move_shard(&self, shard: u32, to: u32) -> Result<Moved, Failure> {
        let from = self.place(shard);
        let (mut source, mut target) = (self.link(from).await?, self.link(to).await?);
        let begun = Instant::now();
        target.ask("room").await?;
        let drained = source.ask(&format!("drain {shard}")).await?.ok_or("the shard is not there")?;
        let drain = begun.elapsed();
        source.ask(&format!("leave {shard}")).await?;
        let closed = begun.elapsed();
        target.ask(&format!("open {shard}")).await?;
        let open = begun.elapsed();
        self.places[shard as usize].store(to, Ordering::Release);
        source.ask("settle").await?;
        Ok(Moved { drained, drain, close: closed - drain, open: open - closed })
    }

    pub(crate) async fn open_all(&self) -> Result<(), Failure> {
        for shard in 0..self.cli.shards {
            self.link(self.place(shard)).await?.ask(&format!("open {shard}")).await?;
        }
        Ok(())
    }

    pub(crate) async fn close_all(&self) -> Result<(), Failure> {
        for shard in 0..self.cli.shards {
            self.link(self.place(shard)).await?.ask(&format!("close {shard}")).await?;
        }
        Ok(())
    }

    /// Lets the processes close their stores and end.
    pub(crate) async fn end(&self) -> Result<(), Failure> {
        for mut process in self.processes.lock().await.drain(..) {
            drop(process.stdin.take());
            let ended = tokio::task::spawn_blocking(move || process.wait()).await??;
            if !ended.success() {
                return Err(format!("a process ended with {ended}").into());
            }
        }
        Ok(())
    }

    /// Connects with a process, once it listens.
    pub(crate) async fn link(&self, no: u32) -> Result<Link, Failure> {
        let socket = self.cli.host_dir(no).join("socket");
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            match UnixStream::connect(&socket).await {
                Ok(stream) => return Ok(Link { stream: BufReader::new(stream) }),
                Err(error) if Instant::now() > until => return Err(described(socket, &error)),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
}

fn described(socket: PathBuf, error: &std::io::Error) -> Failure {
    format!("a process does not answer at {}: {error}", socket.display()).into()
}

/// Where a shard is: the process that has its part of the SSD.
fn place_of(cli: &Cli, shard: u32) -> Result<AtomicU32, Failure> {
    let mut no = 0;
    while cli.host_dir(no).exists() {
        if cli.ssd(no, shard).exists() {
            let is_known = no < cli.processes;
            let unknown =
                || format!("shard {shard} is in process {no}: use more --processes, or move it first");
            return is_known.then_some(AtomicU32::new(no)).ok_or_else(|| unknown().into());
        }
        no += 1;
    }
    Ok(AtomicU32::new(shard % cli.processes))
}

/// A connection with a process: one request at a time.
pub(crate) struct Link {
    stream: BufReader<UnixStream>,
}

impl Link {
    /// Asks, and waits for the answer. `None`: the shard is elsewhere.
    pub(crate) async fn ask(&mut self, request: &str) -> Result<Option<u64>, Failure> {
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes()).await?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).await?;
        match answer.trim_end().split_once(' ') {
            Some(("ok", value)) => Ok(Some(value.parse()?)),
            Some(("error", text)) => Err(text.into()),
            _ if answer == "elsewhere\n" => Ok(None),
            _ => Err("a process has ended".into()),
        }
    }
}
