//! The verdicts on mutants, appended to a file one by one, so that an interrupted run can resume.

use crate::Mutant;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) id: u32,
    /// The judge that caught the mutant; `None`: it survives.
    pub(crate) by: Option<String>,
    /// The test that failed.
    pub(crate) test: Option<String>,
    /// The judge did not end in time.
    pub(crate) hung: bool,
    /// The number of judges that reach the mutant.
    pub(crate) judges: usize,
    pub(crate) seconds: f64,
}

#[derive(Debug)]
pub(crate) struct Verdicts {
    file: File,
    known: BTreeMap<u32, Verdict>,
}

impl Verdicts {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        // The last line may be incomplete.
        let known = text.lines().filter_map(|line| serde_json::from_str::<Verdict>(line).ok());
        let known = known.map(|verdict| (verdict.id, verdict)).collect();
        let file = File::options().append(true).create(true).open(path);
        Ok(Self { file: file.with_context(|| path.display().to_string())?, known })
    }

    pub(crate) fn has(&self, id: u32) -> bool {
        self.known.contains_key(&id)
    }

    pub(crate) fn add(&mut self, verdict: Verdict) -> Result<()> {
        writeln!(self.file, "{}", serde_json::to_string(&verdict)?)?;
        self.known.insert(verdict.id, verdict);
        Ok(())
    }

    pub(crate) fn report(&self, sample: &[Mutant], of: usize) {
        let judged: Vec<_> = sample.iter().filter_map(|m| Some((m, self.known.get(&m.id)?))).collect();
        let mut survivors: Vec<_> = judged.iter().filter(|(_, v)| v.by.is_none()).collect();
        survivors.sort_by_key(|(m, _)| m.id);
        println!("\nsurvivors:");
        for (mutant, verdict) in &survivors {
            println!("{}", line(mutant, verdict));
        }
        let caught = judged.len() - survivors.len();
        let share = 100.0 * caught as f64 / judged.len().max(1) as f64;
        println!("\n{caught} of {} mutants caught ({share:.1}%), drawn from {of} viable ones", judged.len());
        let mut by: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (_, verdict) in &judged {
            if let Some(name) = verdict.by.as_deref() {
                let (count, hung) = by.entry(name).or_default();
                (*count, *hung) = (*count + 1, *hung + usize::from(verdict.hung));
            }
        }
        for (name, (count, hung)) in by {
            let hangs = if hung > 0 { format!(", {hung} of them hang") } else { String::new() };
            println!("  {count:4} by {name}{hangs}");
        }
    }
}

pub(crate) fn line(m: &Mutant, v: &Verdict) -> String {
    let verdict = match (&v.by, &v.test) {
        (None, _) if v.judges == 0 => "SURVIVES: no judge reaches it".into(),
        (None, _) => format!("SURVIVES {} judges", v.judges),
        (Some(by), _) if v.hung => format!("caught by {by} (hangs)"),
        (Some(by), Some(test)) => format!("caught by {by} {test}"),
        (Some(by), None) => format!("caught by {by}"),
    };
    format!("{:5} {}:{} {}: {}: {verdict} ({:.1} s)", m.id, m.file, m.line, m.function, m.what, v.seconds)
}
