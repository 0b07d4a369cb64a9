//! The server: takes clients, reads their requests, performs them, and tells how far they are.

use crate::perform::{Served, perform};
use crate::request::{Line, PROTOCOL, Progress, REQUEST_BYTES_MAX, Refused, Request};
use crate::socket::{Bound, ListenError, bind};
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// Clients at one time. Operators are few; a program that opens connections in a loop must not take the
/// store's descriptors.
const CLIENTS_MAX: usize = 8;
/// How long a client may be silent between two requests.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// How long a client may take to read what was sent.
const WRITE_MAX: Duration = Duration::from_secs(10);
/// The interval of lines of progress, and with it how soon a client that went away is noticed.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);
/// The pause after a failed `accept`: most of its errors, such as too many descriptors, last a while.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A control socket, until this is dropped: that removes the socket and stops what its clients asked for.
/// Drop or [`end`](Control::end) it before the store is closed.
#[derive(Debug)]
#[must_use = "dropping it removes the socket"]
pub struct Control {
    _bound: Bound,
    /// `None` once it was ended. The server ends when the sender is dropped.
    server: Option<(JoinHandle<()>, oneshot::Sender<()>)>,
    pid: u32,
}

impl Control {
    /// Removes the socket, stops what clients asked for, and waits until no request holds the store.
    pub async fn end(mut self) {
        if let Some((server, serving)) = self.server.take() {
            drop(serving);
            let _ = server.await;
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let Some(server) = self.server.take() else { return };
        if self.pid != std::process::id() {
            // The task is the parent's, and its runtime's threads do not exist here.
            std::mem::forget(server);
        }
    }
}

/// Listens for requests at the socket [`SOCKET`](crate::SOCKET) in `dir`, the directory of `store`, until the
/// result is dropped. `store` is a [`PageStore`](pagetier::PageStore), or a `LoggedStore`, whose backups have
/// its log. A socket that a process left which was killed is replaced. The store is not kept open: only a
/// request that runs holds it.
///
/// # Errors
/// There is another file, a living process listens there, or the socket cannot be made.
///
/// # Panics
/// Outside a tokio runtime, or in one without I/O or timers: use `enable_all()`.
pub async fn listen<S: Served>(store: &Arc<S>, dir: impl AsRef<Path>) -> Result<Control, ListenError> {
    let (listener, bound) = bind(dir.as_ref()).await?;
    let (serving, ended) = oneshot::channel();
    let server = Some((tokio::spawn(accept(listener, Arc::downgrade(store), ended)), serving));
    tracing::info!(socket = %dir.as_ref().join(crate::SOCKET).display(), "control socket is ready");
    Ok(Control { _bound: bound, server, pid: std::process::id() })
}

/// Takes clients until the other end of `ended` is dropped, and waits until none of them holds the store.
async fn accept<S: Served>(listener: UnixListener, store: Weak<S>, mut ended: oneshot::Receiver<()>) {
    let places = Arc::new(Semaphore::new(CLIENTS_MAX));
    let mut clients = JoinSet::new();
    while store.strong_count() > 0 {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = clients.join_next() => continue,
            _ = &mut ended => break,
        };
        match accepted {
            Ok((client, _)) => {
                let (store, place) = (store.clone(), Arc::clone(&places).try_acquire_owned());
                clients.spawn(async move {
                    // An error is that of a client that went away.
                    let _ = serve(client, &store, place.is_ok()).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a client of the control socket was not accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    // A task that is aborted while another thread runs it goes on to its next wait, with the store.
    clients.shutdown().await;
}

/// A client and what is still to be sent to it.
struct Client {
    write: OwnedWriteHalf,
    unsent: Vec<u8>,
}

impl Client {
    /// Sends what fits at once; an error is that of a client that went away.
    fn try_send(&mut self, line: &Line) -> io::Result<()> {
        // A client that does not read misses progress, and does not delay the request.
        if self.unsent.is_empty() {
            self.unsent = line.bytes();
        }
        match self.write.try_write(&self.unsent) {
            Ok(sent) => drop(self.unsent.drain(..sent)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn send(&mut self, line: &Line) -> io::Result<()> {
        self.unsent.extend(line.bytes());
        timeout(WRITE_MAX, self.write.write_all(&self.unsent)).await??;
        self.unsent.clear();
        Ok(())
    }
}

async fn serve<S: Served>(stream: UnixStream, store: &Weak<S>, is_admitted: bool) -> io::Result<()> {
    let (read, write) = stream.into_split();
    let (mut read, mut client) = (BufReader::new(read), Client { write, unsent: Vec::new() });
    client.send(&Line::Hello { protocol: PROTOCOL, pid: std::process::id() }).await?;
    if !is_admitted {
        let why = format!("{CLIENTS_MAX} others have requests; repeat it later");
        return client.send(&Line::Refused(Refused::because(why))).await;
    }
    loop {
        let Some(line) = timeout(IDLE_MAX, next_line(&mut read)).await?? else { return Ok(()) };
        let line = match line {
            Ok(line) if line.trim_ascii().is_empty() => continue,
            Ok(line) => line,
            Err(why) => {
                // What follows is the rest of it: nothing could be told apart.
                return client.send(&Line::Refused(why)).await;
            }
        };
        let answer = match serde_json::from_slice::<Request>(&line) {
            Ok(request) => perform_for(&mut client, request, store).await?,
            Err(error) => Line::Refused(Refused::because(format!("not a request: {error}"))),
        };
        client.send(&answer).await?;
    }
}

/// The next line; `None` at the end; an error in the place of one that is too long.
async fn next_line(read: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Result<Vec<u8>, Refused>>> {
    let mut line = Vec::new();
    let bytes = read.take(REQUEST_BYTES_MAX).read_until(b'\n', &mut line).await?;
    let whole = line.ends_with(b"\n");
    Ok(match bytes {
        0 => None,
        _ if !whole && bytes as u64 == REQUEST_BYTES_MAX => {
            Some(Err(Refused::because(format!("a request has at most {REQUEST_BYTES_MAX} bytes"))))
        }
        // The last line may end without its newline.
        _ => Some(Ok(line)),
    })
}

/// Performs a request for a client, and drops it if the client goes away.
async fn perform_for<S: Served>(client: &mut Client, request: Request, store: &Weak<S>) -> io::Result<Line> {
    let Some(store) = store.upgrade() else {
        return Ok(Line::Refused(Refused::because("the store was closed")));
    };
    tracing::info!(?request, "an operator asks");
    let (tell, told) = watch::channel(Progress::new("working", 0, 0));
    let report = Arc::new(move |progress| drop(tell.send_replace(progress)));
    let mut operation = std::pin::pin!(perform(&*store, request, report));
    let mut ticks = interval(PROGRESS_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at once: most requests are done by the second.
    ticks.tick().await;
    loop {
        tokio::select! {
            biased;
            done = &mut operation => return Ok(done.map_or_else(Line::Refused, Line::Answer)),
            _ = ticks.tick() => {
                let progress = Line::Progress(told.borrow().clone());
                // An end of what the client sends is none: it may have sent all that it wants.
                client.try_send(&progress)?;
            }
        }
    }
}
