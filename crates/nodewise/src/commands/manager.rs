//! The Nodewise that manages a process.

use super::command_line;
use crate::{Command, parse};
use nodewise_engine::Pid;
use nodewise_linux::process::descendants;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Its process id; none if nobody manages it, or if whoever does cannot be seen from here.
pub fn manager(pid: u32) -> Option<u32> {
    let user = |pid: u32| std::fs::metadata(format!("/proc/{pid}")).ok().map(|directory| directory.uid());
    let owner = user(pid);
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    pids.find(|&other| {
        other != std::process::id()
            // Nobody else may move its pages.
            && (user(other) == Some(0) || user(other) == owner)
            && roots(other, &command_line(other)).is_some_and(|roots| {
                roots.iter().any(|&root| root == pid || descendants(root).contains(&Pid(pid)))
            })
    })
}

/// The processes that one with this command line manages, with all below them.
fn roots(pid: u32, words: &[String]) -> Option<Vec<u32>> {
    // It may have another name, or be no Nodewise in spite of it.
    Path::new(words.first()?).file_name().filter(|name| name.to_string_lossy().contains("nodewise"))?;
    match parse(words).ok()?.command {
        Command::Run(args) => args.manages().then(|| vec![pid]),
        Command::Attach(args) => args.manages().then(|| args.pids()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_says_who_is_managed() {
        let roots = |line: &str| roots(7, &line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(roots("/usr/bin/nodewise run --log attach -- server 12"), Some(vec![7]));
        assert_eq!(roots("nodewise attach --duration 12 34,35 36"), Some(vec![34, 35, 36]));
        assert_eq!(roots("nodewise attach --dry-run 34"), None);
        assert_eq!(roots("nodewise run --dry-run -- server"), None);
        assert_eq!(roots("nodewise doctor -p 34"), None);
        assert_eq!(roots("server run nodewise"), None);
        assert_eq!(roots("nodewise serve 34"), None);
        assert_eq!(roots(""), None);
    }
}
