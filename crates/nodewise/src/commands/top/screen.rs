//! The tables on a terminal.

use super::figures::{self, Table};
use super::guard;
use super::state::{Sort, State};
use super::watch::Watch;
use anyhow::Context as _;
use nodewise_linux::census::Census;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use rustix::process::{Signal, getpgrp, kill_current_process_group};
use rustix::termios::tcgetpgrp;
use signal_hook::consts::SIGCONT;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How soon a signal is noticed.
const SLICE: Duration = Duration::from_millis(200);

/// Shows the tables until a key or a signal ends it, or for so many looks. The terminal is left as it was.
pub fn run(
    census: &mut Census,
    state: &mut State,
    interval: Duration,
    looks: Option<u32>,
    end: &Arc<AtomicBool>,
) -> anyhow::Result<()> {
    guard::start(Arc::clone(end));
    let goes_on = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGCONT, Arc::clone(&goes_on))?;
    if !wait_for_foreground(end) {
        return Ok(());
    }
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let shown = (|| {
        let mut left = looks.unwrap_or(u32::MAX);
        let mut is_restored = false;
        // Something is there to see soon.
        let mut due = Instant::now() + interval.min(Duration::from_millis(500));
        loop {
            if goes_on.swap(false, Ordering::Relaxed) {
                if !wait_for_foreground(end) {
                    return Ok(());
                }
                // Somebody else may have stopped this, and the shell has changed the terminal since.
                if !std::mem::take(&mut is_restored) {
                    let _ = ratatui::try_restore();
                }
                terminal = ratatui::try_init().context("cannot use the terminal")?;
            }
            state.watch.iter_mut().for_each(Watch::update);
            terminal.draw(|frame| draw(frame, state))?;
            let wait = due.saturating_duration_since(Instant::now()).min(SLICE);
            if end.load(Ordering::Relaxed) {
                return Ok(());
            }
            if event::poll(wait)? {
                match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => match press(state, key) {
                        Pressed::Quit => return Ok(()),
                        Pressed::Look => due = Instant::now(),
                        Pressed::Watch => state.toggle_watch()?,
                        Pressed::Suspend => {
                            let _ = ratatui::try_restore();
                            is_restored = true;
                            kill_current_process_group(Signal::TSTP)?;
                            // Nothing stops a group that no shell could continue.
                            goes_on.store(true, Ordering::Relaxed);
                        }
                        Pressed::Other => {}
                    },
                    _ => {}
                }
            }
            if due <= Instant::now() {
                if left == 0 {
                    return Ok(());
                }
                left -= 1;
                state.look(census);
                due = Instant::now() + interval;
            }
        }
    })();
    // It may be gone.
    let _ = ratatui::try_restore();
    shown
}

/// Whether the terminal is ours before the end. The kernel stops a program in the background that draws on
/// it, and the program then heeds no signal. Terminals that no shell controls are everybody's.
fn wait_for_foreground(end: &AtomicBool) -> bool {
    let is_ours = || tcgetpgrp(std::io::stdout()).map_or(true, |group| group == getpgrp());
    while !is_ours() {
        if end.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::sleep(SLICE);
    }
    !end.load(Ordering::Relaxed)
}

/// The meaning of a key.
enum Pressed {
    Quit,
    Look,
    Watch,
    Suspend,
    Other,
}

fn press(state: &mut State, key: KeyEvent) -> Pressed {
    match key.code {
        KeyCode::Char('q') => return Pressed::Quit,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Pressed::Quit,
        KeyCode::Char('z') if key.modifiers.contains(KeyModifiers::CONTROL) => return Pressed::Suspend,
        KeyCode::Char(' ') => return Pressed::Look,
        KeyCode::Down | KeyCode::Char('j') => state.choose(1),
        KeyCode::Up | KeyCode::Char('k') => state.choose(-1),
        KeyCode::PageDown => state.choose(10),
        KeyCode::PageUp => state.choose(-10),
        KeyCode::Home => state.choose(isize::MIN),
        KeyCode::End => state.choose(isize::MAX),
        KeyCode::Char('f') => state.sort_by(Sort::Far),
        KeyCode::Char('c') => state.sort_by(Sort::Cpu),
        KeyCode::Char('m') => state.sort_by(Sort::Memory),
        KeyCode::Enter => {
            if state.process.is_none() {
                state.show(state.chosen_process().map(|process| process.pid));
            }
            return Pressed::Look;
        }
        KeyCode::Esc | KeyCode::Backspace => state.show(None),
        KeyCode::Char('w') => return Pressed::Watch,
        _ => {}
    }
    Pressed::Other
}

const KEYS: &str = " up/down, enter look closer   q quit   f/c/m sort";
const KEYS_OF_PROCESS: &str = " esc back   w watch, with samples   space look now   q quit";

pub fn draw(frame: &mut Frame, state: &State) {
    let Some(overview) = &state.overview else {
        frame.render_widget(Paragraph::new("nodewise top: looking ..."), frame.area());
        return;
    };
    let nodes = figures::nodes(overview);
    // Processes have no less than half of the room.
    let most = usize::from(frame.area().height) / 2;
    let shown = (nodes.rows.len() + 1).min(most.max(2)) as u16;
    let [title, above, _, below, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(shown),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let line = format!("nodewise top   {}", figures::balancing(&overview.balancing));
    frame.render_widget(Line::from(line).bold(), title);
    table(frame, above, &nodes, None);
    if state.process.is_none() {
        let sort = match state.sort {
            Sort::Far => "CPU time far",
            Sort::Cpu => "CPU time",
            Sort::Memory => "memory",
        };
        let processes = figures::processes(overview, state.processes());
        table(frame, below, &processes, Some(state.chosen));
        frame.render_widget(Line::from(format!("{KEYS}   by {sort}")).dim(), keys);
        return;
    }
    let watched = state.watch.as_ref().map_or(Vec::new(), |watch| {
        let decisions = watch.seen.decisions.iter().take(3).map(|decision| format!("would {decision}"));
        watch.seen.placement(&overview.nodes).into_iter().chain(decisions).collect()
    });
    let threads = figures::threads(state.shown_process().map_or(&[], |process| &process.threads));
    let share = (threads.rows.len() + 1).min(usize::from(below.height) / 2) as u16;
    let [name, seen, above, _, below] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(watched.len() as u16),
        Constraint::Length(share),
        Constraint::Length(1),
        Constraint::Min(2),
    ])
    .areas(below);
    frame.render_widget(Line::from(figures::process(state)).bold(), name);
    frame.render_widget(Paragraph::new(watched.into_iter().map(Line::from).collect::<Vec<_>>()), seen);
    table(frame, above, &threads, None);
    table(frame, below, &figures::regions(overview, &state.regions), None);
    frame.render_widget(Line::from(KEYS_OF_PROCESS).dim(), keys);
}

/// Draws as many rows as fit, the chosen one among them.
fn table<const N: usize>(frame: &mut Frame, area: Rect, table: &Table<N>, chosen: Option<usize>) {
    let room = usize::from(area.height).saturating_sub(1);
    let first = chosen.map_or(0, |chosen| (chosen + 1).saturating_sub(room));
    let lines = table.lines(usize::from(area.width)).enumerate();
    // The head is line 0.
    let lines = lines.filter(|(at, _)| *at == 0 || *at > first).take(room + 1).map(|(at, line)| {
        let style = match at {
            0 => Style::new().underlined(),
            at if chosen == Some(at - 1) => Style::new().reversed(),
            _ => Style::new(),
        };
        let width = usize::from(area.width);
        Line::from(if at == 0 || style != Style::new() { format!("{line:width$}") } else { line })
            .style(style)
    });
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
}
