//! A report: the tables of one run on one device, printed and written to `target/bench-report/`.

use super::Length;
use super::describe::Description;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// The tables of one run on one device, as Markdown.
pub(crate) struct Report {
    bench: &'static str,
    device: String,
    text: String,
}

impl Report {
    /// Begins a report and describes the machine and the devices.
    pub(crate) fn new(bench: &'static str, device: &str, about: &[&Description]) -> Self {
        let mut own = Self { bench, device: device.to_owned(), text: String::new() };
        own.line(format_args!("# {bench} on {device}\n"));
        for about in about {
            own.line(format_args!("- {about}"));
        }
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().unwrap_or("unknown").to_owned();
        own.line(format_args!("- {}, {cores} cores, {}, load {load}", cpu(), said_by("uname", &["-sr"])));
        own.line(format_args!("- {}, {:?} run", said_by("date", &["-u", "+%F %H:%M"]), Length::selected()));
        own
    }

    /// Prints a line and keeps it.
    pub(crate) fn line(&mut self, line: impl std::fmt::Display) {
        println!("{line}");
        writeln!(self.text, "{line}").expect("a string takes every line");
    }

    /// A table's head.
    pub(crate) fn head(&mut self, columns: &[&str]) {
        self.line(format_args!("\n| {} |", columns.join(" | ")));
        self.line(format_args!("|{}", " --- |".repeat(columns.len())));
    }

    /// Writes the file.
    pub(crate) fn finish(self) {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("cargo's target directory");
        let folder = target.join("bench-report");
        let path = folder.join(format!("{}-{}.md", self.bench, self.device));
        let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, self.text));
        match written {
            Ok(()) => println!("\nwritten to {}\n", path.display()),
            Err(error) => eprintln!("{}: the report cannot be written: {error}", path.display()),
        }
    }
}

fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| "an unknown CPU".to_owned(), |(_, name)| name.trim().to_owned())
}

fn said_by(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output();
    out.map_or_else(|_| "unknown".to_owned(), |out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}
