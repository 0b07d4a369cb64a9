//! What a package's sources declare and call: public methods by type, and calls by the type of what they are
//! called on. A parser reads both. The types of expressions are inferred as far as the campaign needs it: by
//! declared types of parameters, fields and results.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Expr, FnArg, ImplItem, Item, Pat, ReturnType, Type, UseTree, Visibility};

/// A type's name, without references and containers.
type Name = String;

/// Containers that stand for what is in them.
const CONTAINERS: [&str; 13] = [
    "Arc",
    "Box",
    "Option",
    "Result",
    "Pin",
    "Mutex",
    "MutexGuard",
    "Weak",
    "Vec",
    "Ready",
    "Cow",
    "Poll",
    "Rc",
];

/// The source files below `folder`.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

fn parsed(folder: &Path) -> Vec<syn::File> {
    // The blocking forms have the asynchronous types' names.
    let is_blocking = |path: &&PathBuf| {
        let part =
            |part: std::path::Component<'_>| part.as_os_str().to_string_lossy().starts_with("blocking");
        path.strip_prefix(folder).is_ok_and(|path| path.components().any(part))
    };
    let parse = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    files(folder).iter().filter(|path| !is_blocking(path)).map(parse).collect()
}

/// What sources declare.
#[derive(Default)]
pub(crate) struct Declared {
    /// The results of methods by type and name, and of functions by name alone.
    results: BTreeMap<(Name, String), Name>,
    fields: BTreeMap<(Name, String), Name>,
    /// The public methods of each type.
    public: BTreeMap<Name, BTreeSet<String>>,
    /// Methods that are public for tests alone.
    hidden: BTreeSet<String>,
    /// The types that the package's root makes public.
    exported: BTreeSet<Name>,
}

impl Declared {
    /// Reads the sources in `folder`, whose root is `lib.rs`, if it has one.
    pub(crate) fn read(folder: &Path) -> Self {
        let mut declared = Self::default();
        for file in parsed(folder) {
            file.items.iter().for_each(|item| declared.item(item));
        }
        declared.export_file(folder, "lib.rs");
        declared
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.results.extend(other.results);
        self.fields.extend(other.fields);
        for (of, methods) in other.public {
            self.public.entry(of).or_default().extend(methods);
        }
        self.hidden.extend(other.hidden);
        self.exported.extend(other.exported);
    }

    /// Whether there is such a method, for tests alone or not.
    pub(crate) fn knows(&self, method: &str) -> bool {
        let of_type = |(of, name): (&str, &str)| self.has(of, name);
        self.hidden.contains(method) || method.split_once("::").is_some_and(of_type)
    }

    /// Adds a public method that a macro declares.
    pub(crate) fn add_method(&mut self, of: &str, name: &str, result: &str) {
        self.results.insert((of.to_owned(), name.to_owned()), result.to_owned());
        self.public.entry(of.to_owned()).or_default().insert(name.to_owned());
    }

    /// The public methods of the exported types, as `Type::name`.
    pub(crate) fn methods(&self) -> BTreeSet<String> {
        let of = |(name, methods): (&Name, &BTreeSet<String>)| {
            let name = name.clone();
            methods.iter().map(move |method| format!("{name}::{method}")).collect::<Vec<_>>()
        };
        self.public.iter().filter(|(name, _)| self.exported.contains(*name)).flat_map(of).collect()
    }

    fn export_file(&mut self, folder: &Path, name: &str) {
        let Ok(text) = fs::read_to_string(folder.join(name)) else { return };
        syn::parse_file(&text).unwrap().items.iter().for_each(|item| self.export(folder, item));
    }

    fn export(&mut self, folder: &Path, item: &Item) {
        match item {
            Item::Use(item) if matches!(item.vis, Visibility::Public(_)) => self.export_tree(&item.tree),
            Item::Mod(module) if matches!(module.vis, Visibility::Public(_)) => match &module.content {
                Some((_, items)) => items.iter().for_each(|item| self.export(folder, item)),
                None if module.ident == "blocking" => {}
                None => {
                    self.export_file(folder, &format!("{}.rs", module.ident));
                    self.export_file(folder, &format!("{}/mod.rs", module.ident));
                }
            },
            _ => {}
        }
    }

    fn export_tree(&mut self, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => self.export_tree(&path.tree),
            UseTree::Name(name) => drop(self.exported.insert(name.ident.to_string())),
            UseTree::Rename(name) => drop(self.exported.insert(name.rename.to_string())),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.export_tree(tree)),
            UseTree::Glob(_) => {}
        }
    }

    fn item(&mut self, item: &Item) {
        match item {
            Item::Fn(function) => {
                let result = result_of(&function.sig.output, None);
                let key = (String::new(), function.sig.ident.to_string());
                self.results.extend(result.map(|result| (key, result)));
            }
            Item::Struct(item) => {
                let of = item.ident.to_string();
                for field in &item.fields {
                    let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
                    let key = (of.clone(), name);
                    self.fields.extend(name_of(&field.ty, None).map(|ty| (key, ty)));
                }
            }
            Item::Trait(item) => {
                let of = item.ident.to_string();
                for item in &item.items {
                    if let syn::TraitItem::Fn(method) = item {
                        self.method(&of, &method.sig, matches!(&of[..], "Media" | "LogGate"));
                    }
                }
            }
            Item::Impl(item) => {
                let Some(of) = name_of(&item.self_ty, None) else { return };
                for method in &item.items {
                    if let ImplItem::Fn(method) = method {
                        let public = matches!(method.vis, Visibility::Public(_)) && item.trait_.is_none();
                        let hidden = is_hidden(&method.attrs);
                        self.method(&of, &method.sig, public && !hidden);
                        if public && hidden {
                            self.hidden.insert(format!("{of}::{}", method.sig.ident));
                        }
                    }
                }
            }
            Item::Mod(module) => {
                module.content.iter().flat_map(|(_, items)| items).for_each(|item| self.item(item));
            }
            _ => {}
        }
    }

    fn method(&mut self, of: &str, signature: &syn::Signature, public: bool) {
        let name = signature.ident.to_string();
        if let Some(result) = result_of(&signature.output, Some(of)) {
            self.results.insert((of.to_owned(), name.clone()), result);
        }
        if public {
            self.public.entry(of.to_owned()).or_default().insert(name);
        }
    }

    fn has(&self, of: &str, method: &str) -> bool {
        let public = self.public.get(of).is_some_and(|methods| methods.contains(method));
        public || self.hidden.contains(&format!("{of}::{method}"))
    }
}

fn is_hidden(attributes: &[syn::Attribute]) -> bool {
    let hides = |attribute: &&syn::Attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("doc") && list.tokens.to_string() == "hidden",
        _ => false,
    };
    attributes.iter().any(|attribute| hides(&attribute))
}

fn result_of(output: &ReturnType, of: Option<&str>) -> Option<Name> {
    match output {
        ReturnType::Default => None,
        ReturnType::Type(_, ty) => name_of(ty, of),
    }
}

/// The name of a type; `of`: what `Self` stands for.
fn name_of(ty: &Type, of: Option<&str>) -> Option<Name> {
    match ty {
        Type::Reference(inner) => name_of(&inner.elem, of),
        Type::Paren(inner) => name_of(&inner.elem, of),
        Type::Group(inner) => name_of(&inner.elem, of),
        Type::Slice(inner) => name_of(&inner.elem, of),
        Type::ImplTrait(inner) => inner.bounds.iter().find_map(|bound| bound_of(bound, of)),
        Type::TraitObject(inner) => inner.bounds.iter().find_map(|bound| bound_of(bound, of)),
        Type::Path(path) => path_of(&path.path, of),
        _ => None,
    }
}

fn bound_of(bound: &syn::TypeParamBound, of: Option<&str>) -> Option<Name> {
    match bound {
        syn::TypeParamBound::Trait(bound) => path_of(&bound.path, of),
        _ => None,
    }
}

fn path_of(path: &syn::Path, of: Option<&str>) -> Option<Name> {
    let last = path.segments.last()?;
    let name = last.ident.to_string();
    if name == "Self" {
        return of.map(str::to_owned);
    }
    if !CONTAINERS.contains(&&name[..]) && name != "Future" {
        return Some(name);
    }
    let syn::PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        syn::GenericArgument::Type(ty) => name_of(ty, of),
        syn::GenericArgument::AssocType(ty) => name_of(&ty.ty, of),
        _ => None,
    })
}

/// The calls in the sources of `folder`, as `Type::name`: of what `public` declares, with what it
/// dereferences to.
pub(crate) fn calls(folder: &Path, public: Declared, derefs: &[(&str, &str)]) -> BTreeSet<String> {
    let mut declared = Declared::read(folder);
    // A name that both declare is the public one's, unless the campaign's own type has it.
    let own = std::mem::take(&mut declared.results);
    declared.add(public);
    for (key, result) in own {
        declared.results.entry(key).or_insert(result);
    }
    let mut found =
        Calls { declared: &declared, derefs, of: None, env: BTreeMap::new(), calls: BTreeSet::new() };
    parsed(folder).iter().for_each(|file| found.visit_file(file));
    found.calls
}

struct Calls<'d> {
    declared: &'d Declared,
    derefs: &'d [(&'d str, &'d str)],
    /// The type whose methods are being read.
    of: Option<Name>,
    /// The types of the variables of a function.
    env: BTreeMap<String, Name>,
    calls: BTreeSet<String>,
}

impl Calls<'_> {
    /// The type that has this public method: `of`, or one that it dereferences to.
    fn owner(&self, of: &str, method: &str) -> Name {
        let mut owner = of;
        while !self.declared.has(owner, method)
            && let Some((_, to)) = self.derefs.iter().find(|(from, _)| *from == owner)
        {
            owner = to;
        }
        let known = self.declared.has(owner, method);
        if known { owner.to_owned() } else { of.to_owned() }
    }

    fn method(&self, of: &str, method: &str) -> Option<Name> {
        let owner = self.owner(of, method);
        self.declared.results.get(&(owner, method.to_owned())).cloned()
    }

    fn ty(&self, expr: &Expr) -> Option<Name> {
        match expr {
            Expr::Path(path) => match path.path.get_ident() {
                Some(ident) if ident == "self" => self.of.clone(),
                Some(ident) => self.env.get(&ident.to_string()).cloned(),
                None => None,
            },
            Expr::Await(inner) => self.ty(&inner.base),
            Expr::Try(inner) => self.ty(&inner.expr),
            Expr::Reference(inner) => self.ty(&inner.expr),
            Expr::Paren(inner) => self.ty(&inner.expr),
            Expr::Unary(inner) => self.ty(&inner.expr),
            Expr::Index(inner) => self.ty(&inner.expr),
            Expr::Block(block) => match block.block.stmts.last() {
                Some(syn::Stmt::Expr(last, None)) => self.ty(last),
                _ => None,
            },
            Expr::If(expr) => match expr.then_branch.stmts.last() {
                Some(syn::Stmt::Expr(last, None)) => self.ty(last),
                _ => None,
            },
            Expr::Match(expr) => expr.arms.iter().find_map(|arm| self.ty(&arm.body)),
            Expr::Struct(expr) => path_of(&expr.path, self.of.as_deref()),
            Expr::Field(field) => {
                let of = self.ty(&field.base)?;
                let syn::Member::Named(name) = &field.member else { return None };
                self.declared.fields.get(&(of, name.to_string())).cloned()
            }
            // What it returns.
            Expr::Closure(closure) => self.ty(&closure.body),
            Expr::Call(call) => self.called(call),
            Expr::MethodCall(call) => {
                let of = self.ty(&call.receiver)?;
                // What keeps or unwraps what it is called on.
                self.method(&of, &call.method.to_string()).or(Some(of))
            }
            _ => None,
        }
    }

    fn called(&self, call: &syn::ExprCall) -> Option<Name> {
        let Expr::Path(path) = &*call.func else { return None };
        let segments: Vec<String> = path.path.segments.iter().map(|s| s.ident.to_string()).collect();
        let (name, before) = segments.split_last()?;
        let of = before.last().map(|of| if of == "Self" { self.of.clone() } else { Some(of.clone()) });
        match of {
            None if matches!(&name[..], "Ok" | "Some") => self.ty(call.args.first()?),
            None if self.env.contains_key(name) => self.env.get(name).cloned(),
            None => self.declared.results.get(&(String::new(), name.clone())).cloned(),
            Some(of) => {
                let of = of?;
                if CONTAINERS.contains(&&of[..]) {
                    return self.ty(call.args.first()?);
                }
                let of_type = self.method(&of, name);
                let free = || self.declared.results.get(&(String::new(), name.clone())).cloned();
                // `module::function`, or a tuple variant.
                of_type.or_else(free)
            }
        }
    }

    fn bind(&mut self, pat: &Pat, ty: Option<Name>) {
        match pat {
            Pat::Ident(ident) => match ty {
                Some(ty) => drop(self.env.insert(ident.ident.to_string(), ty)),
                None => drop(self.env.remove(&ident.ident.to_string())),
            },
            Pat::Type(pat) => {
                let declared = name_of(&pat.ty, self.of.as_deref());
                self.bind(&pat.pat, declared.or(ty));
            }
            Pat::Reference(pat) => self.bind(&pat.pat, ty),
            Pat::Paren(pat) => self.bind(&pat.pat, ty),
            Pat::TupleStruct(pat) if pat.elems.len() == 1 => self.bind(&pat.elems[0], ty),
            Pat::Struct(pat) => {
                let of = path_of(&pat.path, self.of.as_deref());
                for field in &pat.fields {
                    let syn::Member::Named(name) = &field.member else { continue };
                    let key = of.clone().map(|of| (of, name.to_string()));
                    let ty = key.and_then(|key| self.declared.fields.get(&key).cloned());
                    self.bind(&field.pat, ty);
                }
            }
            _ => {}
        }
    }

    fn bind_all(&mut self, pat: &Pat, expr: &Expr) {
        match (pat, expr) {
            (Pat::Tuple(pats), Expr::Tuple(exprs)) => {
                for (pat, expr) in pats.elems.iter().zip(&exprs.elems) {
                    self.bind_all(pat, expr);
                }
            }
            _ => {
                let ty = self.ty(expr);
                self.bind(pat, ty);
            }
        }
    }

    fn inputs(&mut self, signature: &syn::Signature) {
        self.env.clear();
        for input in &signature.inputs {
            if let FnArg::Typed(input) = input {
                let ty = name_of(&input.ty, self.of.as_deref());
                self.bind(&input.pat, ty);
            }
        }
    }

    fn called_on(&mut self, of: &str, method: &str) {
        self.calls.insert(format!("{}::{method}", self.owner(of, method)));
    }
}

impl<'ast> Visit<'ast> for Calls<'_> {
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let before = self.of.take();
        self.of = name_of(&item.self_ty, None);
        visit::visit_item_impl(self, item);
        self.of = before;
    }

    fn visit_impl_item_fn(&mut self, method: &'ast syn::ImplItemFn) {
        self.inputs(&method.sig);
        visit::visit_impl_item_fn(self, method);
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.inputs(&function.sig);
        visit::visit_item_fn(self, function);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        visit::visit_local(self, local);
        if let Some(init) = &local.init {
            self.bind_all(&local.pat, &init.expr);
        }
    }

    fn visit_expr_let(&mut self, expr: &'ast syn::ExprLet) {
        visit::visit_expr_let(self, expr);
        self.bind_all(&expr.pat, &expr.expr);
    }

    fn visit_expr_match(&mut self, expr: &'ast syn::ExprMatch) {
        self.visit_expr(&expr.expr);
        let ty = self.ty(&expr.expr);
        for arm in &expr.arms {
            self.bind(&arm.pat, ty.clone());
            self.visit_arm(arm);
        }
    }

    fn visit_expr_closure(&mut self, closure: &'ast syn::ExprClosure) {
        for input in &closure.inputs {
            if let Pat::Type(_) = input {
                self.bind(input, None);
            }
        }
        visit::visit_expr_closure(self, closure);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        visit::visit_expr_method_call(self, call);
        if let Some(of) = self.ty(&call.receiver) {
            self.called_on(&of, &call.method.to_string());
        }
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        // Also of a function that is passed on.
        let segments: Vec<String> = path.path.segments.iter().map(|s| s.ident.to_string()).collect();
        if let [.., of, name] = &segments[..] {
            self.called_on(&of.clone(), &name.clone());
        }
        visit::visit_expr_path(self, path);
    }
}
