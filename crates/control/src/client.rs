//! The operator's end of the socket.

use crate::request::{Answer, Line, Progress, Refused, Request};
use crate::socket::Place;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// How long the greeting, and each line of progress, may take: a store under load sends several a second.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// A connection to the process that has a store open. Dropping it, or the future of
/// [`ask`](Client::ask), stops what was asked for.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    pid: u32,
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The store's process refused it, or it failed there.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The connection failed.
    #[error("the control socket failed")]
    Io(#[from] io::Error),
    /// The process closed the store, or was stopped.
    #[error("process {pid} closed its control socket before it answered; the request may be done in part")]
    Ended {
        /// The process.
        pid: u32,
    },
    /// The process does not answer.
    #[error("the process at the control socket is silent; it may be stopped")]
    Silent,
    /// What was received is no line of this protocol.
    #[error("the process at the control socket does not speak this protocol")]
    Protocol,
}

impl Client {
    /// Connects to the process that listens in `dir`, a store's directory; `None`: none does.
    ///
    /// # Errors
    /// The socket cannot be used, say because another user owns it, or the process is silent.
    pub async fn connect(dir: impl AsRef<Path>) -> Result<Option<Self>, AskError> {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        let gone = |error: &io::Error| matches!(error.kind(), NotFound | ConnectionRefused);
        // A directory that cannot be used is named by the store's open, which knows what to do about it.
        let Ok(place) = Place::open(dir.as_ref()) else { return Ok(None) };
        let stream = match place.connect().await {
            Err(error) if gone(&error) => return Ok(None),
            stream => stream?,
        };
        let mut client = Self { stream: BufReader::new(stream), pid: 0 };
        match client.line().await? {
            Line::Hello { protocol: 1, pid } => client.pid = pid,
            _ => return Err(AskError::Protocol),
        }
        Ok(Some(client))
    }

    /// The process that has the store open.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Asks, and waits for the answer; calls `progress` several times a second meanwhile. Cancel-safe for the
    /// store, but the connection can then no longer be used.
    ///
    /// # Errors
    /// The request was refused or failed, or there is no answer.
    pub async fn ask(
        &mut self,
        request: &Request,
        mut progress: impl FnMut(Progress) + Send,
    ) -> Result<Answer, AskError> {
        // A path that is not UTF-8.
        let unsent = |error| Refused::because(format!("it cannot be sent: {error}"));
        let mut bytes = serde_json::to_vec(request).map_err(unsent)?;
        bytes.push(b'\n');
        match self.stream.get_mut().write_all(&bytes).await {
            // A server that takes no request says why first.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
            _ => {}
        }
        loop {
            match self.line().await? {
                Line::Progress(now) => progress(now),
                Line::Answer(answer) => return Ok(answer),
                Line::Refused(why) => return Err(why.into()),
                Line::Hello { .. } => return Err(AskError::Protocol),
            }
        }
    }

    async fn line(&mut self) -> Result<Line, AskError> {
        let mut line = Vec::new();
        let read = timeout(SILENCE_MAX, self.stream.read_until(b'\n', &mut line)).await;
        let ended = || AskError::Ended { pid: self.pid };
        match read.map_err(|_| AskError::Silent)? {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(ended()),
            read => read?,
        };
        if !line.ends_with(b"\n") {
            return Err(ended());
        }
        serde_json::from_slice(&line).map_err(|_| AskError::Protocol)
    }
}
