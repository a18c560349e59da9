//! The numbers of a run for Prometheus: one endpoint that answers in its text format while the run goes on.

use super::Usage;
use super::console::say;
use crate::report::facts;
use crate::runtime::score::Metric;
use crate::runtime::trainer::{Event, Observer, Step};
use anyhow::{Context, Result, anyhow};
use prometheus::core::Collector;
use prometheus::{Counter, Gauge, GaugeVec, Opts, Registry, TextEncoder};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The format of the answer (Prometheus, "Exposition formats").
const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Time to wait after a client that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of a request's head, and the time that one client may take.
const HEAD: usize = 8192;
const PATIENCE: Duration = Duration::from_secs(2);

/// Serves the numbers of runs that it observes, until it is dropped.
pub(super) struct Metrics {
    registry: Registry,
    gauges: HashMap<&'static str, Gauge>,
    evaluation: GaugeVec,
    skipped: Counter,
    samples: Counter,
    /// Steps of the run that goes on, those done before, and when it began.
    run: (u64, u64, Instant),
    server: Server,
}

/// The place in which an address was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    CommandLine,
    /// A file, which may come from somebody else: it names addresses of this machine alone.
    Settings,
}

/// The thread that answers.
struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The addresses that a text means: a port of this machine, or a host with a port.
fn addresses(text: &str) -> Result<Vec<SocketAddr>> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))]);
    }
    let found = text.to_socket_addrs().map(|all| all.collect::<Vec<_>>());
    found.ok().filter(|all| !all.is_empty()).ok_or_else(|| {
        let message = format!(
            "metrics at `{text}`: it is an address with a port, such as 127.0.0.1:9464, or a port alone, which only this \
             machine reaches"
        );
        Usage(message).into()
    })
}

/// Listens, or says why not and what to do.
fn listen(text: &str, source: Source) -> Result<TcpListener> {
    let found = addresses(text)?;
    if source == Source::Settings && !found.iter().all(|a| a.ip().is_loopback()) {
        let message = format!(
            "`log.metrics` is {text}, which other machines reach, and a file of settings may come from somebody else: name \
             it on the command line, --metrics {text}, or put an address of this machine alone into the file, such as \
             127.0.0.1:9464"
        );
        return Err(Usage(message).into());
    }
    TcpListener::bind(&found[..]).map_err(|e| {
        let what = match e.kind() {
            ErrorKind::AddrInUse => "another process has that port: stop it, or name another port; 0 takes a free one",
            ErrorKind::PermissionDenied => "ports below 1024 are the administrator's: name a higher one",
            ErrorKind::AddrNotAvailable => {
                "it is no address of this machine: 127.0.0.1 is reached from here alone, 0.0.0.0 from everywhere"
            }
            _ => "name another address",
        };
        anyhow!("cannot serve metrics at {text}: {e}: {what}")
    })
}

impl Metrics {
    /// Begins to serve at the address of the command line, or else of the settings, and says where.
    ///
    /// # Errors
    /// If the address is none, or cannot be listened at; if the settings name one that other machines reach.
    pub(super) fn start(command_line: Option<&str>, settings: Option<&str>) -> Result<Option<Metrics>> {
        let given = command_line.map(|text| (text, Source::CommandLine));
        let given = given.or(settings.map(|text| (text, Source::Settings)));
        given.map(|(text, source)| Metrics::serve(text, source)).transpose()
    }

    fn serve(text: &str, source: Source) -> Result<Metrics> {
        let listener = listen(text, source)?;
        let address = listener.local_addr().context("the address of the metrics")?;
        let registry = Registry::new();
        let evaluation = GaugeVec::new(
            Opts::new("headwater_evaluation", "The last evaluation on held-out data, by metric."),
            &["metric"],
        )?;
        let skipped = Counter::new(
            "headwater_skipped_steps_total",
            "Steps whose gradients were not finite, since the process began.",
        )?;
        let samples =
            Counter::new("headwater_samples_total", "Samples trained on, since the process began.")?;
        let info = Opts::new("headwater_info", "The version of Headwater; always 1.")
            .const_label("version", facts::version());
        let info = Gauge::with_opts(info)?;
        info.set(1.0);
        let all: [Box<dyn Collector>; 4] = [
            Box::new(evaluation.clone()),
            Box::new(skipped.clone()),
            Box::new(samples.clone()),
            Box::new(info),
        ];
        all.into_iter().try_for_each(|c| registry.register(c))?;
        let server = Server::start(listener, address, registry.clone())?;
        let run = (0, 0, Instant::now());
        let metrics = Metrics { registry, gauges: HashMap::new(), evaluation, skipped, samples, run, server };
        let address = metrics.server.address;
        say(format!("metrics: http://{address}/metrics"));
        if !address.ip().is_loopback() {
            say("note: other machines can read the metrics at that address: it has no password and no TLS");
        }
        Ok(metrics)
    }

    /// Sets a number, which exists from then on.
    fn set(&mut self, name: &'static str, help: &str, value: f64) {
        if !self.gauges.contains_key(name) {
            // Names are constants of this file, and each is registered once.
            let Ok(gauge) = Gauge::new(name, help) else { return };
            let _ = self.registry.register(Box::new(gauge.clone()));
            self.gauges.insert(name, gauge);
        }
        self.gauges[name].set(value);
    }

    fn step(&mut self, s: &Step) {
        let (steps, before, begun) = self.run;
        for (name, help, value) in [
            ("headwater_step", "Steps done.", s.step as f64),
            ("headwater_epoch", "Passes over the data done.", s.epoch),
            ("headwater_loss", "Loss of the last step, before its update.", s.loss),
            ("headwater_learning_rate", "Learning rate of the last step.", s.lr),
            ("headwater_gradient_norm", "Norm of all gradients of the last step, before clipping.", s.norm),
            (
                "headwater_gradient_largest",
                "Largest magnitude of a gradient's element in the last step.",
                s.largest,
            ),
            ("headwater_loss_scale", "Factor of the loss in the last step.", s.scale),
            (
                "headwater_step_seconds",
                "Seconds that the last step took, waiting for data included.",
                s.seconds,
            ),
        ] {
            self.set(name, help, value);
        }
        if s.seconds > 0.0 {
            let rate = s.samples as f64 / s.seconds;
            self.set("headwater_samples_per_second", "Samples per second in the last step.", rate);
        }
        if let Some(underflow) = &s.underflow {
            let help = "Share of the gradients' elements that f16 flushed to zero, when it was counted last.";
            self.set("headwater_underflow_share", help, underflow.share());
        }
        if let Some(done) = s.step.checked_sub(before).filter(|done| *done > 0) {
            let left = steps.saturating_sub(s.step) as f64;
            let seconds = begun.elapsed().as_secs_f64() / done as f64 * left;
            self.set(
                "headwater_remaining_seconds",
                "Seconds that the remaining steps are likely to take.",
                seconds,
            );
        }
        self.samples.inc_by(s.samples as f64);
        self.skipped.inc_by(if s.applied { 0.0 } else { 1.0 });
    }
}

impl Metrics {
    /// No run goes on.
    pub(super) fn ended(&mut self) {
        self.running(0.0);
    }

    fn running(&mut self, value: f64) {
        self.set("headwater_running", "1 while a run goes on, 0 after its end.", value);
    }
}

impl Observer for Metrics {
    fn essential(&self) -> bool {
        false
    }

    fn event(&mut self, event: &Event) -> crate::runtime::Result<()> {
        match event {
            Event::Start(s) => {
                self.run = (s.steps, 0, Instant::now());
                self.set("headwater_steps", "Steps of the whole run.", s.steps as f64);
                let help = "Bytes that training takes on the device, as planned.";
                self.set("headwater_planned_memory_bytes", help, s.planned_bytes as f64);
                self.set("headwater_parameters", "Elements of all trained parameters.", s.parameters as f64);
                self.set("headwater_step", "Steps done.", 0.0);
                self.evaluation.reset();
                self.running(1.0);
            }
            Event::Resume { step, .. } => {
                self.run.1 = *step;
                self.set("headwater_step", "Steps done.", *step as f64);
            }
            Event::Step(s) => self.step(s),
            Event::Evaluation(e) => {
                for metric in Metric::ALL {
                    if let Some(value) = metric.of(&e.scores) {
                        self.evaluation.with_label_values(&[metric.name()]).set(value);
                    }
                }
                self.set(
                    "headwater_evaluation_step",
                    "Steps done before the last evaluation.",
                    e.step as f64,
                );
            }
            Event::Checkpoint { step, best: false, .. } => {
                self.set("headwater_checkpoint_step", "Steps done at the newest checkpoint.", *step as f64);
            }
            Event::End { .. } | Event::Interrupted { .. } => self.ended(),
            _ => {}
        }
        Ok(())
    }
}

impl Server {
    fn start(listener: TcpListener, address: SocketAddr, registry: Registry) -> Result<Server> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let resident = Gauge::new("process_resident_memory_bytes", "Bytes of memory that the process has.")?;
        if memory().is_some() {
            registry.register(Box::new(resident.clone()))?;
        }
        let work = move || {
            accept(listener.incoming(), &stopped, |stream| {
                memory().into_iter().for_each(|bytes| resident.set(bytes));
                let _ = answer(stream, &registry);
            });
        };
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(work)?;
        Ok(Server { address, stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    /// Ends the thread, so that the port is free again.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(match address.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        // The thread waits for a client: this is the last one.
        let woken = TcpStream::connect_timeout(&address, PATIENCE).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

/// Hands over clients as they come, until the flag is set.
fn accept<S>(clients: impl Iterator<Item = std::io::Result<S>>, stop: &AtomicBool, mut serve: impl FnMut(S)) {
    for client in clients {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        match client {
            Ok(client) => serve(client),
            // A client that left at once; or no descriptor is free, which stays so for a while.
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Bytes of memory that the process has, where the system says so in `/proc`.
fn memory() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kilobytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(1024.0 * kilobytes)
}

/// Answers one request and closes.
fn answer(mut stream: TcpStream, registry: &Registry) -> std::io::Result<()> {
    let begin = Instant::now();
    stream.set_write_timeout(Some(PATIENCE))?;
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|w| w == b"\r\n\r\n") && head.len() < HEAD {
        let left = PATIENCE.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => return Ok(()),
            n => head.extend(&part[..n]),
        }
    }
    let head = String::from_utf8_lossy(&head);
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => match TextEncoder::new().encode_to_string(&registry.gather()) {
            Ok(text) => ("200 OK", TYPE, text),
            Err(e) => ("500 Internal Server Error", "text/plain", format!("{e}\n")),
        },
        ("GET" | "HEAD", _) => ("404 Not Found", "text/plain", "the numbers are at /metrics\n".into()),
        _ => ("405 Method Not Allowed", "text/plain", "GET /metrics\n".into()),
    };
    let length = body.len();
    let body = if method == "HEAD" { "" } else { &body };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(format!("{head}{body}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_port_of_this_machine_or_a_host_with_a_port() {
        assert_eq!(addresses("9464").unwrap(), ["127.0.0.1:9464".parse().unwrap()]);
        assert_eq!(addresses("0.0.0.0:80").unwrap(), ["0.0.0.0:80".parse().unwrap()]);
        assert_eq!(addresses("[::1]:9464").unwrap(), ["[::1]:9464".parse().unwrap()]);
        for wrong in ["", "localhost", "127.0.0.1", ":9464x", "70000"] {
            let message = addresses(wrong).unwrap_err();
            assert!(
                message.is::<Usage>() && message.to_string().contains("127.0.0.1:9464"),
                "{wrong}: {message}"
            );
        }
    }

    #[test]
    fn a_port_is_free_again_after_the_run() {
        let serve = |text: &str| Metrics::serve(text, Source::CommandLine);
        let metrics = serve("0").unwrap();
        let address = metrics.server.address;
        let taken = serve(&address.to_string()).err().unwrap().to_string();
        assert!(
            taken.contains("another process has that port") && taken.contains(&address.to_string()),
            "{taken}"
        );
        drop(metrics);
        serve(&address.to_string()).unwrap();
    }

    #[test]
    fn a_client_that_cannot_be_accepted_costs_a_pause() {
        let full = || std::io::Error::from(ErrorKind::Other);
        let begin = Instant::now();
        let mut served = Vec::new();
        let clients = [Err(full()), Ok(1), Err(full()), Ok(2)];
        accept(clients.into_iter(), &AtomicBool::new(false), |client| served.push(client));
        assert_eq!(served, [1, 2]);
        assert!(begin.elapsed() >= 2 * PAUSE);
        accept([Ok(3)].into_iter(), &AtomicBool::new(true), |_| panic!("it was stopped"));
    }
}
