//! Answers of the kernel that a socket keeps: an examination of many attachments reads what they
//! share once. Plugins that a runtime calls always ask the kernel.

use std::collections::HashMap;

/// The most answers that are kept. Those of one attachment are a few dozen.
const MOST: usize = 4096;

/// An answer: its messages, each with its type; or the refusal.
type Answer<E> = Result<Vec<(u16, Vec<u8>)>, E>;

/// Takes a message: its type and its payload.
pub(super) type Take<'t> = &'t mut dyn FnMut(u16, &[u8]);

/// The answers to questions that were asked before. They are as old as the memory, at most.
pub(super) struct Memory<E> {
    answers: HashMap<Vec<u8>, Answer<E>>,
}

/// Nothing is kept yet.
impl<E> Default for Memory<E> {
    fn default() -> Memory<E> {
        Memory { answers: HashMap::new() }
    }
}

impl<E: Clone> Memory<E> {
    /// Passes the answer's messages to `each`; asks for an answer that is not kept. Returns false
    /// for a dump that was interrupted, which is not kept.
    pub fn recall(
        &mut self,
        question: Vec<u8>,
        ask: impl FnOnce(Vec<u8>, Take<'_>) -> Result<bool, E>,
        each: Take<'_>,
    ) -> Result<bool, E> {
        if let Some(answer) = self.answers.get(&question) {
            return replay(answer, each);
        }
        let mut messages = vec![];
        let asked = ask(question.clone(), &mut |kind, payload| {
            messages.push((kind, payload.to_vec()));
        });
        let answer = match asked {
            Ok(false) => return Ok(false),
            Ok(true) => Ok(messages),
            Err(refusal) => Err(refusal),
        };
        let replayed = replay(&answer, each);
        self.keep(question, answer);
        replayed
    }

    fn keep(&mut self, question: Vec<u8>, answer: Answer<E>) {
        if self.answers.len() >= MOST {
            self.answers.clear();
        }
        self.answers.insert(question, answer);
    }
}

fn replay<E: Clone>(answer: &Answer<E>, each: Take<'_>) -> Result<bool, E> {
    for (kind, payload) in answer.as_ref().map_err(Clone::clone)? {
        each(*kind, payload);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use nix::errno::Errno;

    use super::*;

    /// Asks, with a kernel that answers so; returns what arrived.
    fn ask(memory: &mut Memory<Errno>, question: u8, kernel: Result<bool, Errno>) -> Answer<Errno> {
        let mut got = vec![];
        let answered = memory.recall(
            vec![question],
            |_, keep| {
                keep(16, &[question, 1]);
                kernel
            },
            &mut |kind, payload| got.push((kind, payload.to_vec())),
        );
        answered.map(|_| got)
    }

    #[test]
    fn a_question_is_asked_once_whatever_the_answer_is() {
        let mut memory = Memory::default();
        let refused = Err(Errno::ENODEV);
        let answer = Ok(vec![(16, vec![7, 1])]);
        assert_eq!(ask(&mut memory, 7, Ok(true)), answer);
        assert_eq!(ask(&mut memory, 7, Err(Errno::EIO)), answer);
        assert_eq!(ask(&mut memory, 8, Err(Errno::ENODEV)), refused);
        assert_eq!(ask(&mut memory, 8, Ok(true)), refused);
    }

    #[test]
    fn an_interrupted_dump_is_not_kept() {
        let mut memory = Memory::default();
        assert_eq!(ask(&mut memory, 7, Ok(false)), Ok(vec![]));
        assert_eq!(ask(&mut memory, 7, Ok(true)), Ok(vec![(16, vec![7, 1])]));
    }

    #[test]
    fn the_number_of_kept_answers_is_bounded() {
        let mut memory = Memory::<Errno>::default();
        let asked = Cell::new(0);
        for question in 0..MOST + 1 {
            let ask = |_, _: Take<'_>| {
                asked.set(asked.get() + 1);
                Ok(true)
            };
            memory.recall(question.to_ne_bytes().to_vec(), ask, &mut |_, _| ()).unwrap();
        }
        assert_eq!((asked.get(), memory.answers.len()), (MOST + 1, 1));
    }
}
