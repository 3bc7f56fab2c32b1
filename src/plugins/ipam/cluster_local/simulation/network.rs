//! The network of the model: operations on their way, lost, late or twice; and what watches hear.

use std::time::Duration;

use super::super::store::{Answer, Heard, Operation, Outcome, Selection};
use super::promise::short;
use super::store::Records;
use super::world::{Event, Flight, Sender, World, ms};

impl World {
    pub fn send(&mut self, from: Sender, operation: Operation) {
        let id = self.flights.len();
        let is_write = !matches!(operation, Operation::Get(_) | Operation::List(_));
        self.flights.push(Flight { operation, from, outcome: None });
        let unreachable = Outcome::Unreachable("cut off".to_owned());
        let fate = if self.is_rough && self.faults.net { self.below(24) } else { 0 };
        if !self.is_up || fate == 23 {
            self.flights[id].outcome = Some(unreachable);
            return self.at(self.now + ms(200), Event::Answer(id));
        }
        let near = [5, 5, 20, 300, 1500];
        let (there, back) = match self.is_rough {
            true => (self.pick(&near), self.pick(&near)),
            false => (ms(5), ms(5)),
        };
        let unknown = Outcome::Unknown("no answer".to_owned());
        match fate {
            19 if is_write && self.faults.twice => {
                let again = self.pick(&[100, 5000, 20_000, 50_000]);
                self.at(self.now + there, Event::Execute(id));
                self.at(self.now + there + back, Event::Answer(id));
                self.at(self.now + there + again, Event::Execute(id));
            }
            20..=22 if is_write => {
                let late = match fate {
                    20 => None,
                    22 if self.faults.late > Duration::ZERO => {
                        let late = self.pick(&[5500, 8000, 20_000, 50_000, 90_000]);
                        Some(late.min(self.faults.late))
                    }
                    _ => Some(there),
                };
                self.log(|| format!("   {from:?}: no answer, executed after {late:?}"));
                self.flights[id].outcome = Some(unknown);
                if let Some(late) = late {
                    self.at(self.now + late, Event::Execute(id));
                }
                self.at(self.now + ms(5000), Event::Answer(id));
            }
            _ => {
                self.at(self.now + there, Event::Execute(id));
                self.at(self.now + there + back, Event::Answer(id));
            }
        }
    }

    pub fn execute(&mut self, id: usize) {
        let Flight { operation, from, outcome } = self.flights[id].clone();
        let is_old = self.is_rough
            && matches!(operation, Operation::List(Selection::Realm(_)))
            && !self.is_other
            && self.one_in(3);
        let mut void = Records::default();
        let store = match (self.is_other, is_old) {
            _ if !self.is_up => &mut void,
            (true, _) => &mut self.other,
            (false, true) => &mut self.old,
            (false, false) => &mut self.store,
        };
        let found = match (self.is_up, store.execute(&operation, &mut self.version)) {
            (true, found) if !self.is_other => found,
            // An engine tells the answers of another store.
            (true, _) => Outcome::Unknown("another cluster answers".to_owned()),
            (false, _) => Outcome::Unknown("the store is down".to_owned()),
        };
        if matches!(found, Outcome::Done(Answer::Written(_) | Answer::Deleted)) {
            self.publish();
        }
        self.log(|| format!("   {from:?} {} = {}", short(&operation), short(&found)));
        if outcome.is_none() {
            self.flights[id].outcome = Some(found);
        }
    }

    pub fn answer(&mut self, id: usize) {
        let Flight { from, outcome, .. } = self.flights[id].clone();
        let outcome = outcome.unwrap_or(Outcome::Unknown("no answer".to_owned()));
        match from {
            Sender::Daemon(number, generation) => {
                if self.nodes[number].generation != generation {
                    return;
                }
                if self.nodes[number].stalled_until > self.now {
                    return self.at(self.nodes[number].stalled_until, Event::Answer(id));
                }
                let now = self.now;
                if let Some(machine) = &mut self.nodes[number].machine {
                    machine.answered(outcome, now);
                }
                let after = if self.is_rough { self.pick(&[5, 5, 5, 100, 1000]) } else { ms(5) };
                self.wake(number, after);
            }
            Sender::Reclaim(number) => {
                let now = self.now;
                let reclaim = &mut self.reclaims[number];
                reclaim.stepper.answered(outcome, now);
                reclaim.is_asking = false;
                let slow = [5, 5, 50, 3000, 30_000, 90_000, 200_000];
                let after = match self.is_rough {
                    true if self.faults.stalls => self.pick(&slow),
                    true => self.pick(&[5, 5, 50, 500, 3000]),
                    false => ms(5),
                };
                self.at(self.now + after, Event::Reclaim(number));
            }
        }
    }

    /// Delivers to the daemons, with a delay, what watches see.
    pub fn publish(&mut self) {
        let now = self.store.heard();
        if !self.is_other && self.heard.last() != Some(&now) {
            self.heard.push(now);
            (0..self.nodes.len()).for_each(|number| self.tell(number));
        }
    }

    pub fn tell(&mut self, number: usize) {
        if self.is_rough && self.faults.net && self.one_in(8) {
            return; // the watch stands still
        }
        let lag = if self.is_rough { self.pick(&[5, 20, 500, 2000]) } else { ms(20) };
        let (generation, place) = (self.nodes[number].generation, self.heard.len());
        self.at(self.now + lag, Event::Hear(number, generation, place));
    }

    /// A daemon hears what its watch has seen, unless it has heard of something later.
    pub fn hear(&mut self, number: usize, generation: u64, place: usize) {
        let (now, node) = (self.now, &mut self.nodes[number]);
        let is_news = place > node.heard && node.generation == generation;
        let (true, Some(machine)) = (is_news, &mut node.machine) else { return };
        node.heard = place;
        let heard = self.heard[place - 1].clone();
        machine.heard(Heard::Now(heard), now);
        if node.stalled_until <= now {
            self.wake(number, ms(1));
        }
    }
}
