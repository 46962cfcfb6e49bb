//! Encodes the remembered names of an engine.

use super::encoding::{Codec, Decoder, Encoder, Malformed, require};
use super::handover::{LastHandover, RememberedName};
use super::limits::REMEMBERED_MAX;
use super::name::LockName;
use super::remembered_names::{RememberedNames, StolenTenure};
use super::state::EngineState;

impl EngineState {
    /// Decodes the remembered names of an engine.
    pub(super) fn take_names(&mut self, from: &mut Decoder<'_>) -> Result<(), Malformed> {
        let count = from.take_length::<RememberedName>()?;
        require(count <= REMEMBERED_MAX)?;
        for _ in 0..count {
            let RememberedName { name, owner, previous } = Codec::take(from)?;
            let last = self.remembered.0.last_key_value();
            require(last.is_none_or(|(last, _)| *last < name))?;
            let is_issued = |last: &LastHandover| last.token.as_u64() < self.mint.upcoming();
            require(previous.last.as_ref().is_none_or(is_issued))?;
            self.insert_memory(name, owner, previous);
        }
        self.take_stolen(from)
    }

    /// Decodes the tenures whose loss was not acknowledged yet.
    fn take_stolen(&mut self, from: &mut Decoder<'_>) -> Result<(), Malformed> {
        let count = from.take_length::<StolenTenure>()?;
        require(count <= self.remembered.len())?;
        let mut before = None;
        for _ in 0..count {
            let (name, stolen) = (LockName::take(from)?, StolenTenure::take(from)?);
            require(before.as_ref().is_none_or(|before| *before < name))?;
            require(stolen.token.as_u64() < self.mint.upcoming())?;
            require(self.remembered.get(&name).is_some())?;
            self.note_stolen(&name, Some(stolen));
            before = Some(name);
        }
        Ok(())
    }
}

impl RememberedNames {
    /// Encodes all names, as [`EngineState::take_names`] decodes them.
    pub(super) fn put(&self, out: &mut Encoder) {
        self.len().put(out);
        for (name, owner, previous) in self.iter() {
            name.put(out);
            owner.put(out);
            previous.put(out);
        }
        let stolen = self.0.iter().filter_map(|(name, it)| Some((name, it.stolen.as_ref()?)));
        let stolen: Vec<_> = stolen.collect();
        stolen.len().put(out);
        for (name, tenure) in stolen {
            name.put(out);
            tenure.put(out);
        }
    }
}
