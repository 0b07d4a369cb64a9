//! No two modules of a crate import each other, directly or through others, and no two folders do.

use super::files;
use std::collections::{BTreeMap, BTreeSet};

/// A module's path in its crate; the crate's root is empty.
pub(super) type Module = Vec<String>;

/// The modules of one crate with their code, without comments and tests.
pub(super) type Modules = BTreeMap<Module, String>;

/// The crates' modules by the folder of their sources; the store's own is empty. A program in a folder of
/// `bin` is a crate of its own.
pub(super) fn crates() -> BTreeMap<String, Modules> {
    let mut crates: BTreeMap<String, Modules> = BTreeMap::new();
    for (file, text) in files("rs") {
        let (mut folder, mut rest) = match file.split_once("/src/") {
            Some((folder, rest)) if folder.starts_with("crates/") || folder.starts_with("tools/") => {
                (folder.to_owned(), rest)
            }
            _ => match file.strip_prefix("src/") {
                Some(rest) => (String::new(), rest),
                None => continue,
            },
        };
        if let Some(program) = rest.strip_prefix("bin/") {
            // A program in one file has no circle.
            let Some((name, of_program)) = program.split_once('/') else { continue };
            (folder, rest) = (format!("{folder}/src/bin/{name}"), of_program);
        }
        let mut module: Module = rest.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
            module.pop();
        }
        crates.entry(folder).or_default().entry(module).or_default().push_str(&code(&text));
    }
    crates
}

/// `text` without comments, and without a test module at its end.
fn code(text: &str) -> String {
    let end = text.find("\n#[cfg(test)]\nmod tests").or_else(|| text.find("\n#[cfg(all(test"));
    let lines = text[..end.unwrap_or(text.len())].lines();
    lines.map(|line| line.split_once("//").map_or(line, |(code, _)| code)).collect::<Vec<_>>().join("\n")
}

/// The paths of a `use` tree, such as `a::b` and `a::c` for `a::{b, c}`.
fn paths(tree: &str) -> Vec<String> {
    let Some((head, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree);
        return vec![path.split_whitespace().collect()];
    };
    let (mut depth, mut part, mut all) = (0, String::new(), Vec::new());
    for c in rest[..rest.rfind('}').unwrap_or(rest.len())].chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if c == ',' && depth == 0 {
            all.push(std::mem::take(&mut part));
        } else {
            part.push(c);
        }
    }
    all.push(part);
    let parts = all.iter().map(|part| part.trim()).filter(|part| !part.is_empty());
    parts.flat_map(|part| paths(part).into_iter().map(|path| format!("{}{path}", head.trim()))).collect()
}

/// The `use` trees of a module: private or re-exported ones.
fn uses(code: &str, exported: bool) -> Vec<String> {
    let statements = code.split(';').filter_map(|statement| {
        let (before, tree) = statement.rsplit_once("use ")?;
        let visibility = before.rsplit(['\n', '}', ']']).next().unwrap_or(before).trim();
        (visibility.starts_with("pub") == exported && !tree.contains('=')).then_some(tree)
    });
    statements.flat_map(paths).collect()
}

/// The paths from `crate` or `super` in a module's code, beside its `use` statements.
fn named(code: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let starts = ["crate::", "super::"].into_iter().flat_map(|start| code.match_indices(start));
    let starts = starts.filter(|(at, _)| !code[..*at].ends_with(is_name) && !code[..*at].ends_with(':'));
    let path = |at: usize| code[at..].chars().take_while(|c| is_name(*c) || *c == ':').collect::<String>();
    starts.map(|(at, _)| path(at).trim_end_matches(':').to_owned()).collect()
}

/// The module that defines what `path` names in `from`; `None` outside the crate.
fn resolve(modules: &Modules, from: &Module, path: &str, depth: usize) -> Option<Module> {
    let mut names = path.split("::").peekable();
    let mut at = match names.peek()? {
        &"crate" => Module::new(),
        &"self" | &"super" => from.clone(),
        _ => return None,
    };
    while let Some(name) = names.next_if(|name| ["crate", "self", "super"].contains(name)) {
        if name == "super" {
            at.pop();
        }
    }
    let child = |at: &Module, name: &str| [at.as_slice(), &[name.to_owned()]].concat();
    while let Some(name) = names.next_if(|name| modules.contains_key(&child(&at, name))) {
        at = child(&at, name);
    }
    if names.peek().is_none() || depth >= 6 {
        return Some(at);
    }
    let code = modules.get(&at)?;
    // What a module imports for itself, those within it can name, too.
    let private = if from.starts_with(&at) { uses(code, false) } else { Vec::new() };
    let exports: Vec<String> = uses(code, true).into_iter().chain(private).collect();
    // The first name may be that of a module without a file, in which the next one is exported.
    let exported = names.find_map(|name| {
        let exports = exports.iter().filter(|path| path.ends_with(&format!("::{name}")));
        let mut defined = exports.filter_map(|path| {
            let head = path.split("::").next()?;
            let is_child = modules.contains_key(&child(&at, head));
            let path = if is_child { format!("self::{path}") } else { path.clone() };
            resolve(modules, &at, &path, depth + 1)
        });
        defined.next()
    });
    Some(exported.unwrap_or(at))
}

/// The modules that each module imports.
pub(super) type Imports<'m> = BTreeMap<&'m Module, BTreeSet<Module>>;

/// Takes a second for the larger crates.
pub(super) fn imports(modules: &Modules) -> Imports<'_> {
    let of = |(module, code): (&'_ Module, &String)| {
        let named = named(code).into_iter().chain(uses(code, false));
        let exported: BTreeSet<String> = uses(code, true).into_iter().collect();
        let paths = named.filter(|path| !exported.contains(path));
        paths.filter_map(|path| resolve(modules, module, &path, 0)).filter(|to| to != module).collect()
    };
    modules.iter().map(|(module, code)| (module, of((module, code)))).collect()
}

/// All modules that `from` reaches by imports.
fn reached<'m>(imports: &'m Imports<'_>, from: &'m Module) -> BTreeSet<&'m Module> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for to in imports.get(module).into_iter().flatten() {
            if reached.insert(to) {
                next.push(to);
            }
        }
    }
    reached
}

/// The modules of a crate that reach themselves.
fn cycles(modules: &Modules) -> Vec<String> {
    let imports = imports(modules);
    let in_cycle = modules.keys().filter(|module| reached(&imports, module).contains(module));
    in_cycle.map(|module| module.join("::")).collect()
}

/// The folders and files directly in `folder`, each with those beside it that its modules import.
pub(super) fn neighbours(imports: &Imports<'_>, folder: &[String]) -> BTreeMap<Module, BTreeSet<Module>> {
    let depth = folder.len() + 1;
    let within = |module: &Module| {
        (module.len() >= depth && module.starts_with(folder)).then(|| module[..depth].to_vec())
    };
    let mut found: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (from, to) in imports {
        if let Some(from) = within(from) {
            let to = to.iter().filter_map(within).filter(|to| *to != from);
            found.entry(from.clone()).or_default().extend(to);
        }
    }
    found
}

/// The folders whose parts reach themselves, each with those parts.
fn cycles_of_folders(modules: &Modules) -> Vec<String> {
    let folders: BTreeSet<&[String]> =
        modules.keys().filter_map(|module| module.split_last()).map(|(_, f)| f).collect();
    let (imports, mut found) = (imports(modules), Vec::new());
    for folder in folders {
        let parts = neighbours(&imports, folder);
        let imports = parts.iter().map(|(part, to)| (part, to.clone())).collect();
        let in_cycle = parts.keys().filter(|part| reached(&imports, part).contains(part));
        found.extend(in_cycle.map(|part| part.join("::")));
    }
    found
}

#[test]
fn no_modules_import_each_other() {
    let crates = crates();
    assert!(crates.len() > 10 && crates[""].len() > 40, "sources found");
    assert!(crates.contains_key("tools/mutants"), "the tools are found");
    for (folder, modules) in &crates {
        let found = cycles(modules);
        assert!(found.is_empty(), "modules of `{folder}` in import cycles: {found:?}");
    }
}

/// Not even through different files: a folder can be understood before those that import it.
#[test]
fn no_folders_import_each_other() {
    for (folder, modules) in &crates() {
        let found = cycles_of_folders(modules);
        assert!(found.is_empty(), "folders of `{folder}` in import cycles: {found:?}");
    }
}

#[test]
fn a_cycle_is_found_through_braces_and_other_names() {
    let modules = |c: &str| {
        let sources = [
            (vec![], "pub use b::Thing;\nmod a;\nmod b;\nmod c;"),
            (vec!["a"], "use crate::{c::{Deep, d}, Other};\nuse std::fmt;"),
            (vec!["b"], "use super::a::Part;\npub struct Thing;"),
            (vec!["c"], c),
        ];
        let owned = |path: Vec<&str>| path.into_iter().map(str::to_owned).collect::<Module>();
        sources.into_iter().map(|(path, code)| (owned(path), code.to_owned())).collect::<Modules>()
    };
    assert!(cycles(&modules("use std::io;")).is_empty());
    assert_eq!(cycles(&modules("use crate::Thing;")), ["a", "b", "c"]);
    assert_eq!(cycles(&modules("fn f() -> crate::a::Part {}")), ["a", "c"]);
}
