//! The terminal, and the loop that joins keys, answers and time. The terminal is restored whatever
//! ends the loop.

use std::collections::HashMap;
use std::io;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::file::FileReading;
use super::model::{Model, ServerAnswer, ServerRequest};
use super::servers::{Answers, Servers};
use super::view::draw;
use crate::commands::Failure;

/// Interval at which clocks advance.
const TICK: Duration = Duration::from_secs(1);
/// Minimum time between frames, so that simultaneous keys and answers are drawn together and a slow
/// line is not flooded.
const FRAME: Duration = Duration::from_millis(40);
/// How long leaving waits for a running replay.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of keys, and of answers, in the queue.
const MAX_QUEUED_KEYS: usize = 64;

/// The time of day, which does not jump while the program runs.
pub struct WallClock {
    began_ms: u64,
    began: Instant,
}

impl WallClock {
    /// Starts now.
    pub fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            began_ms: millis(since.unwrap_or_default()),
            began: Instant::now(),
        }
    }

    /// Returns milliseconds since the Unix epoch.
    pub fn now_ms(&self) -> u64 {
        self.began_ms.saturating_add(millis(self.began.elapsed()))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The terminal while the program uses it. Dropping it restores the terminal; a panic restores it
/// before its message.
struct TerminalScreen(DefaultTerminal);

impl TerminalScreen {
    fn open() -> io::Result<Self> {
        // This also sets the panic hook.
        ratatui::try_init().map(Self)
    }
}

impl Drop for TerminalScreen {
    fn drop(&mut self) {
        // If the terminal is gone, no error can be shown.
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }
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

/// The running tasks.
struct ScreenTasks {
    all: JoinSet<()>,
    /// The latest look of each kind. A newer one replaces it.
    looks: HashMap<(u8, usize), AbortHandle>,
    answers: Answers,
    servers: Servers,
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

impl ScreenTasks {
    fn begin(&mut self, (number, request): (u64, ServerRequest)) {
        if request == ServerRequest::Stop {
            self.servers.stop();
            return;
        }
        let kind = kind(&request);
        let (servers, answers) = (self.servers.clone(), self.answers.clone());
        let task = self.all.spawn(async move {
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
}

/// The model, with the tasks and the clock that change it.
struct TopSession<'a> {
    model: Model,
    tasks: ScreenTasks,
    clock: &'a WallClock,
}

impl TopSession<'_> {
    /// Advances the model's clock, and begins the requests that are due.
    fn begin_due(&mut self) {
        self.model.at_time(self.clock.now_ms());
        let due = self.model.due();
        due.into_iter().for_each(|it| self.tasks.begin(it));
    }

    fn apply_answer(&mut self, (number, answer): (u64, ServerAnswer)) {
        self.model.at_time(self.clock.now_ms());
        self.model.receive(number, answer);
    }

    /// Applies a key, and begins the requests that follow from it.
    fn apply_key(&mut self, key: Option<io::Result<Event>>) -> io::Result<()> {
        let key = key.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))?;
        self.model.at_time(self.clock.now_ms());
        let requests = match key {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.model.pressed(key),
            // A new size is drawn like any other change.
            _ => Vec::new(),
        };
        requests.into_iter().for_each(|it| self.tasks.begin(it));
        Ok(())
    }

    /// Applies a changed configuration.
    fn apply_file(&mut self, read: FileReading) {
        if self.model.reread(read) {
            match self.tasks.servers.with(self.model.configs()) {
                Ok(servers) => self.tasks.servers = servers,
                Err(why) => self.model.file_error = Some(why.words()),
            }
        }
    }

    /// Applies the keys and answers that arrive until the next frame, which are drawn together.
    async fn apply_until_frame(
        &mut self,
        keys: &mut mpsc::Receiver<io::Result<Event>>,
        answered: &mut mpsc::Receiver<(u64, ServerAnswer)>,
    ) {
        let until = tokio::time::Instant::now() + FRAME;
        while !self.model.is_over {
            let Ok(key) = tokio::time::timeout_at(until, async {
                tokio::select! {
                    biased;
                    key = keys.recv() => Some(key),
                    Some(answer) = answered.recv() => {
                        self.apply_answer(answer);
                        None
                    }
                }
            })
            .await
            else {
                return;
            };
            let Some(key) = key else { continue };
            if self.apply_key(key).is_err() {
                return;
            }
        }
    }
}

/// Shows `model` until the operator leaves.
///
/// # Errors
/// The terminal went away, or a task panicked.
pub async fn run(
    model: Model,
    (servers, mut files): (Servers, mpsc::Receiver<FileReading>),
    clock: &WallClock,
    has_color: bool,
) -> Result<ExitCode, Failure> {
    let [mut terminate, mut hangup] = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::hangup())?,
    ];
    let (answers, mut answered) = mpsc::channel(MAX_QUEUED_KEYS);
    let tasks = ScreenTasks {
        all: JoinSet::new(),
        looks: HashMap::new(),
        answers,
        servers,
    };
    let mut session = TopSession {
        model,
        tasks,
        clock,
    };
    let mut screen = TerminalScreen::open().map_err(|why| terminal_error(&why))?;
    let mut keys = keys();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ended = loop {
        session.begin_due();
        if let Err(why) = screen
            .0
            .draw(|frame| draw(frame, &session.model, has_color))
        {
            break Err(terminal_error(&why));
        }
        tokio::select! {
            _ = tick.tick() => {}
            Some(answer) = answered.recv() => session.apply_answer(answer),
            Some(read) = files.recv() => session.apply_file(read),
            key = keys.recv() => {
                if let Err(why) = session.apply_key(key) {
                    break Err(terminal_error(&why));
                }
            }
            Some(task) = session.tasks.all.join_next() => {
                if task.is_err_and(|why| why.is_panic()) {
                    break Err(Failure::Failed("a request to a server panicked, see above".to_owned()));
                }
                // Nothing has changed.
                continue;
            }
            _ = terminate.recv() => break Ok(ExitCode::SUCCESS),
            _ = hangup.recv() => break Ok(ExitCode::SUCCESS),
        }
        session.apply_until_frame(&mut keys, &mut answered).await;
        if session.model.is_over {
            break Ok(ExitCode::SUCCESS);
        }
    };
    drop(screen);
    if session.model.action.is_some() {
        leave(session.tasks, &mut answered).await;
    }
    ended
}

/// Waits for the end of the running action.
async fn leave(tasks: ScreenTasks, answered: &mut mpsc::Receiver<(u64, ServerAnswer)>) {
    eprintln!("waiting for the running action, at most {LEAVE_WITHIN:?} ...");
    tasks.servers.stop();
    let end = async {
        while let Some((_, answer)) = answered.recv().await {
            if let ServerAnswer::Done(ended) = answer {
                return ended.unwrap_or_else(|why| format!("not done: {why}"));
            }
        }
        "it did not finish".to_owned()
    };
    match timeout(LEAVE_WITHIN, end).await {
        Ok(words) => eprintln!("{words}"),
        Err(_) => {
            eprintln!("it has not finished; sluicegate inspect or dead list shows the result")
        }
    }
}

fn terminal_error(why: &io::Error) -> Failure {
    Failure::Failed(format!("the terminal can't be used: {why}"))
}
