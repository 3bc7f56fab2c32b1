//! A kind of fault that `validate` or `doctor` finds.

/// How bad a fault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something does not work.
    Error,
    /// Something works, but probably not as it was meant, or not for long.
    Warning,
}

impl Severity {
    /// Its word in the output.
    pub fn word(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

/// A kind of fault. The pages have it from here.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    /// `D` and three digits, or words of `validate`; never with another meaning.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, in a few words.
    pub title: &'static str,
    /// What brings it about; empty if the title says it.
    pub cause: &'static str,
    /// What is to be done; empty if only the finding knows.
    pub fix: &'static str,
}

impl Fault {
    /// A fault that breaks something.
    pub const fn error(code: &'static str, title: &'static str) -> Fault {
        Fault { code, severity: Severity::Error, title, cause: "", fix: "" }
    }

    /// A fault that breaks nothing yet.
    pub const fn warning(code: &'static str, title: &'static str) -> Fault {
        Fault { severity: Severity::Warning, ..Fault::error(code, title) }
    }

    /// The same with cause and fix.
    #[must_use]
    pub const fn explained(self, cause: &'static str, fix: &'static str) -> Fault {
        Fault { cause, fix, ..self }
    }
}
