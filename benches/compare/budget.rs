//! A limit, and the figure that it is for.

/// One budget and what was measured for it.
pub struct Budget {
    pub name: String,
    pub limit: f64,
    pub unit: &'static str,
    /// `None` if its cases were not run, or one side of them is missing.
    pub measured: Option<f64>,
}

impl Budget {
    pub fn missed(&self) -> bool {
        self.measured.is_some_and(|measured| measured > self.limit)
    }

    pub fn verdict(&self) -> &'static str {
        match self.measured {
            None => "not measured",
            Some(_) if self.missed() => "MISSED",
            Some(_) => "ok",
        }
    }
}
