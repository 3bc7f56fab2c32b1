//! What a page of the manual says beside the description of its command line.

/// Terms, each with its explanation.
pub type Terms = &'static [(&'static str, &'static str)];

/// The sections of a page that its command line does not contain.
#[derive(Clone, Copy, Debug)]
pub struct Manual {
    /// Paragraphs that follow the purpose.
    pub description: &'static [&'static str],
    /// Commands, each with what it does.
    pub examples: Terms,
    /// Each exit status with its meaning.
    pub exit_status: Terms,
    /// Files that the command reads or writes.
    pub files: Terms,
    /// Variables that it reads.
    pub environment: Terms,
    /// Other pages, with their sections: `ip-netns(8)`.
    pub see_also: &'static [&'static str],
}

impl Manual {
    /// No section, to be completed.
    pub const EMPTY: Manual = Manual {
        description: &[],
        examples: &[],
        exit_status: SUCCESS_OR_USAGE,
        files: &[],
        environment: &[],
        see_also: &[],
    };
}

/// The examples of a subcommand, which the line of each names: `cni-multi net VERB`, `cnitool VERB`. Those of one verb
/// follow each other; `of_all` are those of the page about all of them.
pub fn examples_of(verb: &str, of_all: Terms, of_verbs: Terms) -> Terms {
    if verb.is_empty() {
        return of_all;
    }
    let is_its = |(line, _): &(&str, &str)| line.split(' ').take(3).any(|word| word == verb);
    of_verbs
        .chunk_by(|one, other| is_its(one) == is_its(other))
        .find(|all| is_its(&all[0]))
        .unwrap_or(&[])
}

/// The exit statuses of commands that only print.
pub const SUCCESS_OR_USAGE: Terms = &[
    ("0", "Success."),
    ("1", "The output could not be written."),
    ("2", "The command line is invalid."),
];

/// The exit statuses of most commands.
pub const SUCCESS_FAILURE_OR_USAGE: Terms = &[
    ("0", "Success."),
    ("1", "The operation failed; the error is on stderr."),
    ("2", "The command line is invalid."),
];
