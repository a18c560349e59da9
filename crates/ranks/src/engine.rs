//! The communication thread. It alone calls MPI: it begins and ends it, carries one exchange after the other,
//! and in between listens to the other ranks. MPI goes on only while it is called, so the thread polls, with
//! short sleeps.
//!
//! When a rank is lost, each survivor prints one line that names it, notifies the others, and ends its
//! process with status [`LOST`]: what it waits for will not arrive, and no call of MPI is sure to return.

use crate::health::{Identity, MESSAGE, Peer, Word, named};
use crate::launcher::{Kind, Launcher};
use crate::mpi::{Communicator, Mpi, Request};
use crate::{Error, LOST, Result};
use headwater_core::diagnostic::{Code, Error as CoreError, Result as CoreResult};
use headwater_core::ranks::{Exchange, Ticket, Transport};
use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two heartbeats.
const BEAT: Duration = Duration::from_secs(1);
/// Time between two looks at processes of this machine.
const LOOK: Duration = Duration::from_millis(50);
/// Time between two looks for messages.
const LISTEN: Duration = Duration::from_millis(5);
/// Longest sleep between two polls of an exchange.
const NAP: Duration = Duration::from_micros(200);
/// Time for others to receive the report of a fault before processes end.
const GRACE: Duration = Duration::from_millis(1500);
/// Time after which a process ends though MPI has not.
const LAST: Duration = Duration::from_secs(2);
/// A pause of this process by which it was stopped itself.
const STOPPED: Duration = Duration::from_secs(3);
/// Waiting time after which a line says for whom.
const PATIENCE: Duration = Duration::from_secs(30);

/// Times after which another rank is taken for gone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Without a heartbeat.
    pub silent: Duration,
    /// Without a step forward, while others wait for it.
    pub stalled: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { silent: Duration::from_secs(8), stalled: Duration::from_secs(600) }
    }
}

enum Command {
    Post(u64, Exchange),
    Leave,
}

#[derive(Default)]
struct State {
    /// Parts of exchanges that are over, by ticket.
    done: HashMap<u64, Vec<Vec<u8>>>,
    next: u64,
    /// The phase of this rank, its step, and the time when it began.
    doing: (String, String),
    since: Option<Instant>,
    /// Why this rank ends, and whether the others have been told.
    ends: Option<String>,
    told: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The world, as known when the ranks have met.
struct Met {
    rank: usize,
    identities: Vec<Identity>,
    library: String,
}

/// Ranks that MPI connects; see the module's description.
pub struct Engine {
    shared: Arc<Shared>,
    commands: Mutex<Option<Sender<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    met: Met,
}

impl Engine {
    /// Meets the ranks that the launcher has started.
    ///
    /// # Errors
    /// `Start` if there is no library, or it sees another number of ranks than the launcher has started.
    pub fn start(launcher: &Launcher, limits: Limits) -> Result<Arc<Engine>> {
        // hydra notifies survivors of a death by this signal, where it does not end them itself: the default
        // action would end them before they say which rank is lost.
        #[cfg(unix)]
        if launcher.kind == Kind::Hydra {
            let told = Arc::new(AtomicBool::new(false));
            let _ = signal_hook::flag::register(signal_hook::consts::SIGUSR1, told);
        }
        let (commands, receiver) = channel();
        let (met, meets) = channel();
        let shared = Arc::new(Shared::default());
        let (own, launcher) = (shared.clone(), launcher.clone());
        let work = move || match Communication::begin(&launcher, limits, own, receiver) {
            Ok((mut communication, known)) => {
                if met.send(Ok(known)).is_ok() {
                    communication.run();
                }
            }
            Err(e) => drop(met.send(Err(e))),
        };
        let named = std::thread::Builder::new().name("headwater-ranks".into());
        let thread =
            named.spawn(work).map_err(|e| Error::Start(format!("no thread for communication: {e}")))?;
        let gone = || Error::Start("the communication thread has ended".into());
        let met = meets.recv().map_err(|_| gone())??;
        Ok(Arc::new(Engine {
            shared,
            commands: Mutex::new(Some(commands)),
            thread: Mutex::new(Some(thread)),
            met,
        }))
    }

    /// The library with its version and interface.
    pub fn library(&self) -> &str {
        &self.met.library
    }

    /// The ranks, with hosts and processes.
    pub fn identities(&self) -> &[Identity] {
        &self.met.identities
    }

    fn send(&self, command: Command) -> bool {
        let commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.as_ref().is_some_and(|c| c.send(command).is_ok())
    }
}

fn over() -> CoreError {
    CoreError::new(Code::Device, "this rank has left the others")
}

impl Transport for Engine {
    fn rank(&self) -> usize {
        self.met.rank
    }

    fn ranks(&self) -> usize {
        self.met.identities.len()
    }

    fn post(&self, exchange: Exchange) -> CoreResult<Ticket> {
        let number = {
            let mut state = self.shared.lock();
            state.next += 1;
            state.next
        };
        if !self.send(Command::Post(number, exchange)) {
            return Err(over());
        }
        Ok(Ticket(number))
    }

    fn test(&self, ticket: Ticket) -> CoreResult<Option<Vec<Vec<u8>>>> {
        Ok(self.shared.lock().done.remove(&ticket.0))
    }

    fn wait(&self, ticket: Ticket) -> CoreResult<Vec<Vec<u8>>> {
        let mut state = self.shared.lock();
        loop {
            if let Some(parts) = state.done.remove(&ticket.0) {
                return Ok(parts);
            }
            if state.told {
                return Err(over());
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn abort(&self, why: &str) {
        let mut state = self.shared.lock();
        if self.commands.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return;
        }
        state.ends.get_or_insert_with(|| why.to_string());
        let until = Instant::now() + GRACE + LAST;
        while !state.told && Instant::now() < until {
            let waited = self.shared.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        // The thread keeps MPI's memory until the process ends.
        *self.commands.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn leave(&self) {
        self.send(Command::Leave);
        *self.commands.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic of the thread has been printed.
        let _ = thread.map(JoinHandle::join);
    }

    fn at(&self, doing: &str) {
        let mut state = self.shared.lock();
        state.doing = (doing.into(), String::new());
        state.since = Some(Instant::now());
    }

    fn inside(&self, part: &str) {
        let mut state = self.shared.lock();
        state.doing.1 = part.into();
        state.since = Some(Instant::now());
    }

    fn named(&self, rank: usize) -> String {
        self.met.identities.get(rank).map_or(format!("rank {rank}"), |i| named(rank, i))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        match std::thread::panicking() {
            true => self.abort("it panicked"),
            false => self.leave(),
        }
    }
}

/// Messages from and to a rank.
struct Line {
    peer: Peer,
    receiving: Option<Request>,
    sending: Option<Request>,
}

/// The thread's own side.
struct Communication {
    mpi: Mpi,
    limits: Limits,
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    rank: usize,
    /// Communicators of exchanges, and of heartbeats.
    data: Communicator,
    control: Communicator,
    /// By rank; `None` at this rank's own place.
    lines: Vec<Option<Line>>,
    /// Exchanges begun, and when the present one was; `None` between two.
    begun: u64,
    waiting: Option<Instant>,
    told_of_waiting: bool,
    listened: Instant,
    looked: Instant,
    beaten: Instant,
}

/// A line on standard error, if there is anybody to read it.
fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Waits for a request before anybody listens.
fn finished(mpi: &Mpi, mut request: Request) -> Result<Vec<u8>> {
    while !mpi.test(&mut request)? {
        std::thread::sleep(NAP);
    }
    Ok(request.take())
}

impl Communication {
    fn begin(
        launcher: &Launcher,
        limits: Limits,
        shared: Arc<Shared>,
        commands: Receiver<Command>,
    ) -> Result<(Communication, Met)> {
        let mpi = Mpi::open(Some(launcher))?;
        let world = mpi.begin()?;
        let (place, size) = mpi.place(world)?;
        if size != launcher.size {
            let message = format!(
                "the launcher has started {} ranks ({}), and {} sees {size}: it is the library of another MPI than the launcher's, \
                 so that each process would train alone. Start with the mpirun of this library, or name the launcher's with \
                 HEADWATER_MPI=/path/libmpi.so",
                launcher.size,
                launcher.variable,
                mpi.described()
            );
            mpi.end();
            return Err(Error::Start(message));
        }
        // Ranks of a machine follow each other, whatever the launcher's numbers: lanes are cut by nodes
        // first.
        let own = Identity::own();
        let all = finished(&mpi, mpi.all_gather(world, own.to_bytes(), &vec![MESSAGE; size])?)?;
        let all: Vec<Identity> = all.chunks(MESSAGE).map(Identity::of).collect();
        let node = |i: usize| all.iter().position(|other| other.node == all[i].node).unwrap_or(i);
        let mut order: Vec<usize> = (0..size).collect();
        order.sort_by_key(|&i| (node(i), i));
        let rank = order.iter().position(|&i| i == place).unwrap_or(place);
        let data = mpi.ordered(world, rank)?;
        let control = mpi.apart(data)?;
        let identities: Vec<Identity> = order.iter().map(|&i| all[i].clone()).collect();
        let now = Instant::now();
        let met = Met { rank, identities: identities.clone(), library: mpi.described() };
        let line = |(other, identity): (usize, Identity)| {
            (other != rank).then(|| Line {
                peer: Peer::new(identity, &own, now),
                receiving: None,
                sending: None,
            })
        };
        let mut communication = Communication {
            lines: identities.into_iter().enumerate().map(line).collect(),
            mpi,
            limits,
            shared,
            commands,
            rank,
            data,
            control,
            begun: 0,
            waiting: None,
            told_of_waiting: false,
            listened: now,
            looked: now,
            beaten: now,
        };
        for from in 0..size {
            communication.receive(from)?;
        }
        Ok((communication, met))
    }

    /// Waits for the next message of a rank.
    fn receive(&mut self, from: usize) -> Result<()> {
        if let Some(line) = &mut self.lines[from] {
            line.receiving = Some(self.mpi.receive(self.control, from, MESSAGE)?);
        }
        Ok(())
    }

    /// Carries exchanges until the rank leaves.
    fn run(&mut self) {
        loop {
            match self.commands.recv_timeout(LISTEN) {
                Ok(Command::Post(number, exchange)) => {
                    let parts = match self.exchange(exchange) {
                        Ok(parts) => parts,
                        Err(e) => self.failed(&e),
                    };
                    self.shared.lock().done.insert(number, parts);
                    self.shared.changed.notify_all();
                }
                Ok(Command::Leave) => return self.leave(),
                Err(RecvTimeoutError::Timeout) => self.tend(),
                // Before the engine is dropped, its owner has left or has notified the others why not.
                Err(RecvTimeoutError::Disconnected) => self.rest(),
            }
        }
    }

    /// One exchange. Ranks first tell each other what they are about to do, so that they notice if it
    /// differs.
    fn exchange(&mut self, exchange: Exchange) -> Result<Vec<Vec<u8>>> {
        const HEAD: usize = 24;
        let size = self.lines.len();
        self.begun += 1;
        (self.waiting, self.told_of_waiting) = (Some(Instant::now()), false);
        let (kind, lengths) = match &exchange {
            Exchange::AllToAll(parts) => (1u64, parts.iter().map(Vec::len).collect()),
            Exchange::AllGather(bytes) => (2, vec![bytes.len(); size]),
            Exchange::Broadcast { root, bytes } => (4 + *root as u64, vec![bytes.len(); size]),
            Exchange::Barrier => (3, vec![0; size]),
        };
        if lengths.len() != size {
            return Err(Error::Lost(format!("{} parts for {size} ranks", lengths.len())));
        }
        let head = lengths.iter().flat_map(|n| [self.begun, kind, *n as u64]).flat_map(u64::to_le_bytes);
        let head = head.collect();
        let request = self.mpi.all_to_all(self.data, head, HEAD)?;
        let heads = self.finish(request)?;
        let mut received = Vec::with_capacity(size);
        for (other, head) in heads.chunks(HEAD).enumerate() {
            let number = |i: usize| head[8 * i..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
            if (number(0), number(1)) != (self.begun, kind) {
                return Err(Error::Lost(format!(
                    "{} is at another exchange than this rank {}: their programs differ",
                    self.name(other),
                    self.rank
                )));
            }
            received.push(number(2) as usize);
        }
        let split = |bytes: Vec<u8>, lengths: &[usize]| {
            let mut rest = &bytes[..];
            let next = |&n: &usize| {
                let (part, more) = rest.split_at(n);
                rest = more;
                part.to_vec()
            };
            lengths.iter().map(next).collect()
        };
        let parts = match exchange {
            Exchange::AllToAll(parts) => {
                let request = self.mpi.all_to_all_v(self.data, parts.concat(), &lengths, &received)?;
                split(self.finish(request)?, &received)
            }
            Exchange::AllGather(bytes) => {
                let request = self.mpi.all_gather(self.data, bytes, &received)?;
                split(self.finish(request)?, &received)
            }
            Exchange::Broadcast { root, mut bytes } => {
                let length = received.get(root).copied().unwrap_or(0);
                bytes.resize(length, 0);
                let request = self.mpi.broadcast(self.data, bytes, root)?;
                vec![self.finish(request)?]
            }
            Exchange::Barrier => Vec::new(),
        };
        self.waiting = None;
        Ok(parts)
    }

    /// Polls until a request is over, listening to the others.
    fn finish(&mut self, mut request: Request) -> Result<Vec<u8>> {
        let begin = Instant::now();
        while !self.mpi.test(&mut request)? {
            self.tend();
            match begin.elapsed() < NAP {
                true => std::thread::yield_now(),
                false => std::thread::sleep(NAP),
            }
        }
        Ok(request.take())
    }

    /// Listens, looks and beats, each when it is time.
    fn tend(&mut self) {
        let now = Instant::now();
        let gap = now.saturating_duration_since(self.listened);
        if gap < LISTEN {
            return;
        }
        if gap > STOPPED {
            // This process itself was suspended: it could not receive the others' messages.
            self.lines.iter_mut().flatten().for_each(|l| l.peer.heard += gap);
        }
        self.listened = now;
        if let Err(e) = self.listen(now) {
            self.failed(&e);
        }
        let ends = self.shared.lock().ends.clone();
        if let Some(why) = ends {
            self.tell(&Word::Ends(why), GRACE / 2);
            self.rest();
        }
        if now.saturating_duration_since(self.looked) >= LOOK {
            self.looked = now;
            if let Some(line) = self.fault(now) {
                self.gone(&line);
            }
        }
        if now.saturating_duration_since(self.beaten) >= BEAT {
            self.beaten = now;
            let word = self.alive(now);
            self.beat(&word);
            self.mention_waiting(now);
        }
    }

    /// Receives the others' messages.
    fn listen(&mut self, now: Instant) -> Result<()> {
        for other in 0..self.lines.len() {
            let Some(Line { peer, receiving: Some(request), .. }) = &mut self.lines[other] else { continue };
            if !self.mpi.test(request)? {
                continue;
            }
            let word = Word::of(request.received());
            let named = named(other, &peer.identity);
            if let Some(word) = &word {
                peer.hear(word, now);
            }
            match word {
                Some(Word::Ends(why)) => {
                    self.own_end();
                    self.gone(&format!("{named} has ended: {why}"))
                }
                Some(Word::Gone(line)) => self.gone(&format!("{line} (says {named})")),
                Some(Word::Bye) => {
                    if let Some(line) = &mut self.lines[other] {
                        line.receiving = None;
                    }
                }
                Some(Word::Alive { .. }) | None => self.receive(other)?,
            }
        }
        Ok(())
    }

    /// Ends with the rank's own error, if it has one too: what is wrong for one rank is often wrong for all,
    /// and each then says it in its own words.
    fn own_end(&mut self) {
        let until = Instant::now() + GRACE / 3;
        while Instant::now() < until {
            if self.shared.lock().ends.is_some() {
                self.rest();
            }
            std::thread::sleep(LISTEN);
        }
    }

    /// The fault of a rank, in a line.
    fn fault(&self, now: Instant) -> Option<String> {
        let waited = self.waiting.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let begun = if self.waiting.is_some() { self.begun } else { 0 };
        let waiting = (begun, waited);
        self.lines.iter().enumerate().find_map(|(other, line)| {
            let peer = &line.as_ref()?.peer;
            let fault = peer.fault(self.limits.silent, self.limits.stalled, waiting, now)?;
            Some(format!("{} {fault}", named(other, &peer.identity)))
        })
    }

    /// Says once for whom this rank has waited for long. Rank 0 speaks for all.
    fn mention_waiting(&mut self, now: Instant) {
        let waited = self.waiting.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        if self.rank != 0 || self.told_of_waiting || waited < PATIENCE {
            return;
        }
        self.told_of_waiting = true;
        for (other, line) in self.lines.iter().enumerate() {
            let Some(Line { peer, .. }) = line else { continue };
            if peer.behind(self.begun) {
                let named = named(other, &peer.identity);
                say(&format!("waiting for {named} for {:.0} s, at: {}", waited.as_secs_f64(), peer.doing));
            }
        }
    }

    fn alive(&self, now: Instant) -> Word {
        let state = self.shared.lock();
        let (doing, part) = &state.doing;
        let doing = match part.is_empty() {
            true => doing.clone(),
            false => format!("{doing}: {part}"),
        };
        let seconds = state.since.map_or(0.0, |since| now.saturating_duration_since(since).as_secs_f32());
        Word::Alive { begun: self.begun, seconds, doing }
    }

    /// Sends a word to all who have taken the one before.
    fn beat(&mut self, word: &Word) {
        for other in 0..self.lines.len() {
            let Some(line) = &mut self.lines[other] else { continue };
            let busy = |r: &mut Request| !self.mpi.test(r).unwrap_or(false);
            if line.sending.as_mut().is_some_and(busy) {
                continue;
            }
            // A heartbeat that cannot be sent is not received: the other side notices.
            line.sending =
                if line.peer.left { None } else { self.mpi.send(self.control, other, word.to_bytes()).ok() };
        }
    }

    /// Sends a word to all, once earlier ones are sent, for at most `patience`.
    fn tell(&mut self, word: &Word, patience: Duration) {
        let until = Instant::now() + patience;
        let mut sent = vec![false; self.lines.len()];
        loop {
            let mut open = false;
            for (other, sent) in sent.iter_mut().enumerate() {
                let Some(line) = &mut self.lines[other] else { continue };
                let free = line.sending.as_mut().is_none_or(|r| self.mpi.test(r).unwrap_or(true));
                if free && !*sent {
                    line.sending = self.mpi.send(self.control, other, word.to_bytes()).ok();
                    *sent = true;
                }
                open |= !(free && *sent)
                    || line.sending.as_mut().is_some_and(|r| !self.mpi.test(r).unwrap_or(true));
            }
            if !open || Instant::now() >= until {
                return;
            }
            std::thread::sleep(LISTEN);
        }
    }

    fn name(&self, rank: usize) -> String {
        self.lines[rank].as_ref().map_or(format!("rank {rank}"), |l| named(rank, &l.peer.identity))
    }

    /// MPI has failed: finds the lost rank, then the process ends.
    fn failed(&mut self, error: &Error) -> ! {
        let until = Instant::now() + self.limits.silent;
        while Instant::now() < until {
            if let Some(line) = self.fault(Instant::now()) {
                self.gone(&line);
            }
            if self.listen(Instant::now()).is_err() && until - Instant::now() > GRACE {
                std::thread::sleep(LOOK);
            }
            std::thread::sleep(LISTEN);
        }
        let text = error.to_string();
        self.gone(text.strip_prefix("HW-R012: ").unwrap_or(&text))
    }

    /// A rank is lost: prints which, lets the others print it too, and ends this process.
    fn gone(&mut self, line: &str) -> ! {
        say(&format!(
            "error: HW-R012: {line}; the run ends, and goes on from its last checkpoint with --resume"
        ));
        // Whatever MPI does from here on, the process ends.
        let _ = std::thread::Builder::new().spawn(|| {
            std::thread::sleep(GRACE + LAST);
            signal_hook::low_level::exit(LOST);
        });
        let begin = Instant::now();
        self.tell(&Word::Gone(line.into()), GRACE);
        std::thread::sleep(GRACE.saturating_sub(begin.elapsed()));
        self.mpi.abort(LOST);
        signal_hook::low_level::exit(LOST)
    }

    /// Ends this rank's part, when all others end theirs.
    fn leave(&mut self) {
        if let Err(e) = self.exchange(Exchange::Barrier) {
            self.failed(&e);
        }
        // Messages under way are taken before MPI ends.
        self.tell(&Word::Bye, self.limits.silent);
        let until = Instant::now() + self.limits.silent;
        while self.lines.iter().flatten().any(|l| l.receiving.is_some()) && Instant::now() < until {
            if self.listen(Instant::now()).is_err() {
                break;
            }
            std::thread::sleep(LISTEN);
        }
        self.mpi.end();
        self.shared.lock().told = true;
        self.shared.changed.notify_all();
    }

    /// Has told all that there is to tell: keeps MPI's memory until the process ends.
    fn rest(&mut self) -> ! {
        self.shared.lock().told = true;
        self.shared.changed.notify_all();
        loop {
            std::thread::sleep(LAST);
        }
    }
}
