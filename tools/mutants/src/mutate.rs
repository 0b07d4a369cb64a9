//! Finds the mutants of one source file and writes the instrumented text.
//!
//! Every mutant is an insertion around existing text, so that no expression is copied: `a < b` becomes
//! `pm::lt(7, &(a), &(b))`.

use crate::Mutant;
use proc_macro2::Span;
use std::collections::HashSet;
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, ImplItemFn, ItemFn, ReturnType, Signature, Stmt, Type, UnOp};

/// The path of the switches in the instrumented copy.
const PM: &str = "::pagetier_page::pm";

/// Functions that only report: statistics, and recounts for tests.
const REPORTS: [&str; 4] = ["stats", "memory", "memory_bytes", "validate"];

/// The instrumented text of `source`, and its mutants. `next` is the first free id; ids in `dropped` are
/// left out, but counted.
pub(crate) fn mutate(
    file: &str,
    source: &str,
    own_crate: bool,
    next: &mut u32,
    dropped: &HashSet<u32>,
) -> syn::Result<(String, Vec<Mutant>)> {
    let parsed = syn::parse_file(source)?;
    let mut finder = Finder {
        file,
        pm: if own_crate { PM.replace("::pagetier_page", "crate") } else { PM.to_owned() },
        next,
        dropped,
        function: String::new(),
        mutants: Vec::new(),
        edits: Vec::new(),
    };
    finder.visit_file(&parsed);
    let Finder { mut edits, mutants, .. } = finder;
    // Outer prefixes before inner ones, inner suffixes before outer ones.
    edits.sort_by_key(|e| (e.at, e.rank));
    let mut text = String::with_capacity(source.len() * 2);
    let mut from = 0;
    for edit in edits {
        text.push_str(&source[from..edit.at]);
        text.push_str(&edit.text);
        from = edit.at + edit.skip;
    }
    text.push_str(&source[from..]);
    Ok((text, mutants))
}

#[derive(Debug)]
struct Edit {
    at: usize,
    /// The order of edits at the same place: suffixes before prefixes, the innermost suffix and the outermost
    /// prefix first.
    rank: i64,
    text: String,
    /// Bytes of the original that the text replaces.
    skip: usize,
}

struct Finder<'a> {
    file: &'a str,
    pm: String,
    next: &'a mut u32,
    dropped: &'a HashSet<u32>,
    function: String,
    mutants: Vec<Mutant>,
    edits: Vec<Edit>,
}

impl Finder<'_> {
    /// Adds a mutant at `span`; `None` if it is known not to compile.
    fn mutant(&mut self, span: Span, what: impl Into<String>) -> Option<u32> {
        let id = *self.next;
        *self.next += 1;
        if self.dropped.contains(&id) {
            return None;
        }
        let (file, line) = (self.file.to_owned(), span.start().line);
        self.mutants.push(Mutant { id, file, line, function: self.function.clone(), what: what.into() });
        Some(id)
    }

    fn wrap(&mut self, range: Range<usize>, before: String, after: &str) {
        let len = (range.end - range.start) as i64;
        self.edits.push(Edit { at: range.start, rank: 1_000_000 - len, text: before, skip: 0 });
        self.edits.push(Edit { at: range.end, rank: -1_000_000 + len, text: after.to_owned(), skip: 0 });
    }

    fn force(&mut self, expr: &Expr, value: bool) {
        if contains_let(expr) {
            return;
        }
        if let Some(id) = self.mutant(expr.span(), format!("a condition becomes {value}")) {
            let pm = self.pm.clone();
            self.wrap(expr.span().byte_range(), format!("{pm}::force({id}, {value}, "), ")");
        }
    }

    fn compare(&mut self, e: &syn::ExprBinary, name: &str, what: &str) {
        self.operator(e, name, what, ["&(", "), &(", "))"]);
    }

    fn arithmetic(&mut self, e: &syn::ExprBinary, name: &str, what: &str) {
        self.operator(e, name, what, ["", ", ", ")"]);
    }

    /// Replaces an operator by a call, with these texts around and between its operands.
    fn operator(&mut self, e: &syn::ExprBinary, name: &str, what: &str, [first, between, last]: [&str; 3]) {
        if let Some(id) = self.mutant(e.op.span(), what) {
            let (l, r) = (e.left.span().byte_range(), e.right.span().byte_range());
            let pm = self.pm.clone();
            self.wrap(l.start..r.end, format!("{pm}::{name}({id}, {first}"), last);
            self.edits.push(Edit { at: l.end, rank: 0, text: between.into(), skip: r.start - l.end });
        }
    }

    fn function(&mut self, sig: &Signature, block: &Block) {
        let before = std::mem::replace(&mut self.function, sig.ident.to_string());
        if sig.constness.is_none() && !REPORTS.contains(&self.function.as_str()) {
            for value in replacements(&sig.output) {
                if let Some(id) = self.mutant(sig.span(), format!("returns {value} at once")) {
                    let at = block.brace_token.span.open().byte_range().end;
                    let text = format!(" if {}::on({id}) {{ return {value}; }}", self.pm);
                    self.edits.push(Edit { at, rank: 0, text, skip: 0 });
                }
            }
            self.visit_block(block);
        }
        self.function = before;
    }
}

/// The values that a function of this type can return without computing anything.
fn replacements(output: &ReturnType) -> Vec<&'static str> {
    let ReturnType::Type(_, ty) = output else { return vec!["()"] };
    let Type::Path(path) = &**ty else { return Vec::new() };
    let Some(last) = path.path.segments.last() else { return Vec::new() };
    match last.ident.to_string().as_str() {
        "bool" => vec!["true", "false"],
        "Option" => vec!["None"],
        "usize" | "u64" | "u32" => vec!["0"],
        "Vec" => vec!["Vec::new()"],
        "Result" => match &last.arguments {
            syn::PathArguments::AngleBracketed(args) => match args.args.first() {
                Some(syn::GenericArgument::Type(Type::Tuple(t))) if t.elems.is_empty() => vec!["Ok(())"],
                _ => Vec::new(),
            },
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

fn contains_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(b) => contains_let(&b.left) || contains_let(&b.right),
        Expr::Paren(p) => contains_let(&p.expr),
        _ => false,
    }
}

fn is_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|a| {
        let text = a.meta.path().segments.last().map(|s| s.ident.to_string()).unwrap_or_default();
        let cfg_test = matches!(&a.meta, syn::Meta::List(l) if l.path.is_ident("cfg")
            && (l.tokens.to_string().contains("test") || l.tokens.to_string().contains("probes")
                || l.tokens.to_string().contains("loom")));
        text == "test" || cfg_test
    })
}

/// Whether the statement can be omitted. Counting for statistics is not part of the protocol.
fn deletable(expr: &Expr) -> bool {
    let counts = |text: &str| ["stats", "counters", "bump("].iter().any(|word| text.contains(word));
    match expr {
        Expr::MethodCall(_) | Expr::Call(_) | Expr::Binary(_) if counts(&quote_short(expr)) => false,
        Expr::MethodCall(call) => !matches!(call.method.to_string().as_str(), "validate" | "enable"),
        Expr::Call(call) => !matches!(&*call.func, Expr::Path(p) if p.path.is_ident("drop")),
        Expr::Assign(assign) => matches!(&*assign.left, Expr::Field(_) | Expr::Unary(_) | Expr::Index(_)),
        Expr::Binary(b) => matches!(
            b.op,
            BinOp::AddAssign(_) | BinOp::SubAssign(_) | BinOp::BitOrAssign(_) | BinOp::BitAndAssign(_)
        ),
        Expr::Await(a) => deletable(&a.base),
        Expr::Try(t) => deletable(&t.expr),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let skip = match item {
            syn::Item::Mod(m) => is_test(&m.attrs),
            syn::Item::Fn(f) => is_test(&f.attrs),
            syn::Item::Impl(i) => {
                is_test(&i.attrs)
                    || i.trait_.as_ref().is_some_and(|(_, path, _)| {
                        path.segments.last().is_some_and(|s| s.ident == "Debug" || s.ident == "Display")
                    })
            }
            syn::Item::Const(_) | syn::Item::Static(_) | syn::Item::Macro(_) | syn::Item::Enum(_) => true,
            _ => false,
        };
        if !skip {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, f: &'ast ItemFn) {
        self.function(&f.sig, &f.block);
    }

    fn visit_impl_item_fn(&mut self, f: &'ast ImplItemFn) {
        if !is_test(&f.attrs) {
            self.function(&f.sig, &f.block);
        }
    }

    fn visit_stmt(&mut self, stmt: &'ast Stmt) {
        if let Stmt::Expr(expr, Some(semi)) = stmt
            && deletable(expr)
        {
            let shown: String = quote_short(expr);
            if let Some(id) = self.mutant(expr.span(), format!("omits `{shown}`")) {
                let range = expr.span().byte_range().start..semi.span().byte_range().end;
                let pm = self.pm.clone();
                self.wrap(range, format!("if !{pm}::on({id}) {{ "), " }");
            }
        }
        visit::visit_stmt(self, stmt);
    }

    fn visit_macro(&mut self, _: &'ast syn::Macro) {}

    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}

    fn visit_type(&mut self, _: &'ast Type) {}

    fn visit_pat(&mut self, _: &'ast syn::Pat) {}

    fn visit_expr_if(&mut self, e: &'ast syn::ExprIf) {
        self.force(&e.cond, true);
        self.force(&e.cond, false);
        visit::visit_expr_if(self, e);
    }

    fn visit_expr_unary(&mut self, e: &'ast syn::ExprUnary) {
        if matches!(e.op, UnOp::Not(_))
            && let Some(id) = self.mutant(e.span(), "omits a `!`")
        {
            let pm = self.pm.clone();
            self.wrap(e.span().byte_range(), format!("{pm}::not({id}, "), ")");
        }
        visit::visit_expr_unary(self, e);
    }

    fn visit_expr_binary(&mut self, e: &'ast syn::ExprBinary) {
        match e.op {
            BinOp::And(_) => {
                self.force(&e.left, true);
                self.force(&e.right, true);
            }
            BinOp::Or(_) => {
                self.force(&e.left, false);
                self.force(&e.right, false);
            }
            BinOp::Lt(_) => self.compare(e, "lt", "`<` becomes `<=`"),
            BinOp::Le(_) => self.compare(e, "le", "`<=` becomes `<`"),
            BinOp::Gt(_) => self.compare(e, "gt", "`>` becomes `>=`"),
            BinOp::Ge(_) => self.compare(e, "ge", "`>=` becomes `>`"),
            BinOp::Eq(_) => self.compare(e, "eq", "`==` becomes `!=`"),
            BinOp::Ne(_) => self.compare(e, "ne", "`!=` becomes `==`"),
            BinOp::Add(_) => self.arithmetic(e, "add", "`+` becomes `-`"),
            BinOp::Sub(_) => self.arithmetic(e, "sub", "`-` becomes `+`"),
            _ => {}
        }
        visit::visit_expr_binary(self, e);
    }
}

/// The source of `expr`, truncated.
fn quote_short(expr: &Expr) -> String {
    let text = expr.span().source_text().unwrap_or_default();
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_expressions_are_wrapped_without_being_copied() {
        let source = "fn f(a: u32, b: u32) -> bool { if a + 1 < b && !g(a) { self.x = 3; h(); } a == b }";
        let (text, mutants) = mutate("x.rs", source, false, &mut 1, &HashSet::new()).unwrap();
        assert!(syn::parse_file(&text).is_ok(), "{text}");
        assert!(mutants.len() >= 11, "{mutants:?}");
        assert_eq!(text.matches("g(a)").count(), 1, "{text}");
    }

    #[test]
    fn a_dropped_mutant_keeps_the_numbers_of_the_others() {
        let source = "fn f(a: u32) -> bool { a < 1 && a > 2 }";
        let (_, all) = mutate("x.rs", source, false, &mut 1, &HashSet::new()).unwrap();
        let (_, fewer) = mutate("x.rs", source, false, &mut 1, &HashSet::from([all[0].id])).unwrap();
        assert_eq!(fewer[0].id, all[1].id);
        assert_eq!(fewer.len() + 1, all.len());
    }

    #[test]
    fn tests_and_constants_are_left_alone() {
        let source = "const A: u32 = 1 + 2; #[cfg(test)] mod tests { fn f() -> bool { 1 < 2 } } const fn g() -> u32 { 1 + 1 }";
        let (text, mutants) = mutate("x.rs", source, false, &mut 1, &HashSet::new()).unwrap();
        assert_eq!((text.as_str(), mutants.len()), (source, 0));
    }
}
