//! The terminal, and the loop that joins keys, answers and time. The terminal is restored whatever
//! ends the loop.

use std::collections::HashMap;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::ConfigSource;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rules::limit::floor_ms;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::model::{FileReading, Model, ServerAnswer, ServerRequest};
use super::servers::Servers;
use super::view::draw;
use crate::commands::Failure;

/// Interval at which clocks advance.
const TICK: Duration = Duration::from_secs(1);
/// Minimum time between frames, so that simultaneous keys and answers are drawn together and a slow
/// line is not flooded.
const FRAME: Duration = Duration::from_millis(40);
/// Interval at which the configuration file is checked, as in workers.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long leaving waits for a running replay.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of keys, and of answers, in the queue.
const MAX_QUEUED_KEYS: usize = 64;

/// Returns a clock that does not jump while the program runs: milliseconds since the Unix epoch.
pub fn wall_clock() -> impl Fn() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let (began_ms, began) = (floor_ms(since.unwrap_or_default()), Instant::now());
    move || began_ms.saturating_add(floor_ms(began.elapsed()))
}

/// Returns keys as they are pressed. The thread lives as long as the program, since a read of a
/// terminal can't be canceled.
fn keys() -> mpsc::Receiver<io::Result<Event>> {
    let (send, keys) = mpsc::channel(MAX_QUEUED_KEYS);
    thread::spawn(move || {
        loop {
            let read = event::read();
            let is_over = read.is_err();
            if send.blocking_send(read).is_err() || is_over {
                return;
            }
        }
    });
    keys
}

/// Returns the reads after each change of the configuration, beginning with the first read. A
/// thread checks the file as long as the program runs, so that a hanging file system does not block
/// the screen.
fn reads(mut source: ConfigSource) -> mpsc::Receiver<FileReading> {
    let (send, reads) = mpsc::channel(1);
    thread::spawn(move || {
        loop {
            if source.has_changed() {
                let read = source.load().map_err(|errors| errors.to_string());
                if send.blocking_send(read).is_err() {
                    return;
                }
            }
            // A spurious wakeup only causes one more check.
            thread::park_timeout(CHECK_INTERVAL);
        }
    });
    reads
}

/// Answers with the numbers of their questions.
type Answers = mpsc::Receiver<(u64, ServerAnswer)>;

/// The model, with the tasks and the clock that change it.
struct TopSession<C> {
    model: Model,
    clock: C,
    servers: Servers,
    stop: Arc<Notify>,
    tasks: JoinSet<()>,
    /// The latest look of each kind. A newer one replaces it.
    looks: HashMap<(u8, usize), AbortHandle>,
    answers: mpsc::Sender<(u64, ServerAnswer)>,
}

/// Returns the kind of look that a newer one replaces, or `None` for requests that must run to
/// their end.
fn kind(request: &ServerRequest) -> Option<(u8, usize)> {
    match request {
        ServerRequest::Overview(at, _) => Some((0, *at)),
        ServerRequest::Glance(..) => Some((1, 0)),
        // Fetched letters must be returned to their queue. The state asks for one fetch at a time.
        ServerRequest::DeadLetters(_) | ServerRequest::Act(..) | ServerRequest::Stop => None,
    }
}

impl<C: Fn() -> u64> TopSession<C> {
    /// Returns the model at the current time.
    fn now(&mut self) -> &mut Model {
        self.model.at_time((self.clock)());
        &mut self.model
    }

    fn begin(&mut self, (number, request): (u64, ServerRequest)) {
        if request == ServerRequest::Stop {
            return self.stop.notify_waiters();
        }
        let kind = kind(&request);
        let (servers, answers) = (self.servers.clone(), self.answers.clone());
        let task = self.tasks.spawn(async move {
            // A lost progress report is soon followed by another. Without a receiver, the screen is
            // gone.
            let send_progress = |answer: ServerAnswer| drop(answers.try_send((number, answer)));
            if let Some(answer) = servers.perform(request, &send_progress).await {
                let _ = answers.send((number, answer)).await;
            }
        });
        if let Some(kind) = kind
            && let Some(before) = self.looks.insert(kind, task)
        {
            before.abort();
        }
    }

    /// Applies a key, and begins the requests that follow from it.
    fn apply_key(&mut self, key: Option<io::Result<Event>>) -> io::Result<()> {
        let key = key.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))?;
        // A new size is drawn like any other change.
        if let Event::Key(key) = key
            && key.kind != KeyEventKind::Release
        {
            let requests = self.now().pressed(key);
            requests.into_iter().for_each(|it| self.begin(it));
        }
        Ok(())
    }

    /// Applies a changed configuration.
    fn apply_file(&mut self, read: FileReading) {
        if self.now().reread(read) {
            match Servers::new(self.model.configs(), &self.stop) {
                Ok(servers) => self.servers = servers,
                Err(why) => self.model.file_error = Some(why.words()),
            }
        }
    }

    /// Shows the model on `terminal` until the operator leaves.
    async fn show(
        &mut self,
        terminal: &mut DefaultTerminal,
        (source, answered): (ConfigSource, &mut Answers),
        has_color: bool,
    ) -> Result<(), Failure> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let (mut keys, mut files) = (keys(), reads(source));
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut is_drawn, mut next_frame) = (false, Instant::now());
        while !self.model.is_over {
            let due = self.now().due();
            due.into_iter().for_each(|it| self.begin(it));
            tokio::select! {
                () = sleep_until(next_frame), if !is_drawn => {
                    let drawn = terminal.draw(|frame| draw(frame, &self.model, has_color));
                    drawn.map_err(|why| terminal_error(&why))?;
                    (is_drawn, next_frame) = (true, Instant::now() + FRAME);
                    continue;
                }
                _ = tick.tick() => {}
                Some((number, answer)) = answered.recv() => self.now().receive(number, answer),
                Some(read) = files.recv() => self.apply_file(read),
                key = keys.recv() => self.apply_key(key).map_err(|why| terminal_error(&why))?,
                Some(task) = self.tasks.join_next() => {
                    if task.is_err_and(|why| why.is_panic()) {
                        let words = "a request to a server panicked, see above";
                        return Err(Failure::Failed(words.to_owned()));
                    }
                    // Nothing has changed.
                    continue;
                }
                _ = terminate.recv() => return Ok(()),
                _ = hangup.recv() => return Ok(()),
            }
            is_drawn = false;
        }
        Ok(())
    }
}

/// Shows `model` until the operator leaves.
///
/// # Errors
/// The terminal went away, or a task panicked.
pub async fn run(
    model: Model,
    source: ConfigSource,
    clock: impl Fn() -> u64,
    has_color: bool,
) -> Result<ExitCode, Failure> {
    let stop = Arc::default();
    let (answers, mut answered) = mpsc::channel(MAX_QUEUED_KEYS);
    let mut session = TopSession {
        servers: Servers::new(model.configs(), &stop)?,
        model,
        clock,
        stop,
        tasks: JoinSet::new(),
        looks: HashMap::new(),
        answers,
    };
    // This also sets a panic hook, which restores the terminal before the message.
    let mut terminal = ratatui::try_init().map_err(|why| terminal_error(&why))?;
    let sources = (source, &mut answered);
    let ended = session.show(&mut terminal, sources, has_color).await;
    // If the terminal is gone, no error can be shown.
    let _ = terminal.show_cursor();
    let _ = ratatui::try_restore();
    if session.model.action.is_some() {
        eprintln!("waiting for the running action, at most {LEAVE_WITHIN:?} ...");
        session.stop.notify_waiters();
        match timeout(LEAVE_WITHIN, end_of_action(&mut answered)).await {
            Ok(words) => eprintln!("{words}"),
            Err(_) => {
                eprintln!("it has not finished; sluicegate inspect or dead list shows the result")
            }
        }
    }
    ended.map(|()| ExitCode::SUCCESS)
}

/// Waits for the end of the running action, and returns its result.
async fn end_of_action(answered: &mut Answers) -> String {
    while let Some((_, answer)) = answered.recv().await {
        if let ServerAnswer::Done(ended) = answer {
            return ended.unwrap_or_else(|why| format!("not done: {why}"));
        }
    }
    "it did not finish".to_owned()
}

fn terminal_error(why: &io::Error) -> Failure {
    Failure::Failed(format!("the terminal can't be used: {why}"))
}
