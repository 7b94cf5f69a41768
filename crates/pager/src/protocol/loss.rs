//! Why a pager ended its program, or gave it SIGBUS: a code in the ledger. What to say of it is in
//! the ledger's message.

/// What was lost. The numbers are those of the ledger's field `lost`, where 0 is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Loss {
    /// The pager cannot go on, and the memory under it with it.
    Pager = 1,
    /// The store did not give a page back.
    Page = 2,
    /// The store takes nothing, so the budget cannot be held.
    Budget = 3,
}

impl Loss {
    /// What a ledger says. A number of a later release is a loss all the same.
    pub fn from_code(code: u32) -> Option<Loss> {
        match code {
            0 => None,
            2 => Some(Loss::Page),
            3 => Some(Loss::Budget),
            _ => Some(Loss::Pager),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_back_and_unknown_ones_are_losses() {
        for loss in [Loss::Pager, Loss::Page, Loss::Budget] {
            assert_eq!(Loss::from_code(loss as u32), Some(loss));
        }
        assert_eq!(Loss::from_code(0), None);
        assert_eq!(Loss::from_code(99), Some(Loss::Pager));
    }
}
