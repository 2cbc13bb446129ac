//! A part of a campaign, as `--part 2/3` names it.

use serde::{Deserialize, Serialize};

/// Share of a campaign that one of several equal servers measures: whole planes that stand together, so that no plane is
/// measured on two servers and a service is started on as few of them as can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// From 1.
    pub number: u32,
    pub of: u32,
}

impl std::str::FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("{text:?} is no part. Write 2/3 for the second of three");
        let (number, of) = text.split_once('/').ok_or_else(wrong)?;
        let (number, of) = (number.parse().map_err(|_| wrong())?, of.parse().map_err(|_| wrong())?);
        if number == 0 || number > of {
            return Err(wrong());
        }
        Ok(Part { number, of })
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}
