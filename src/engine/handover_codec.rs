//! Encodes the remembered names of an engine.

use super::encoding::{Codec, Decoder, Malformed, require};
use super::handover::{LastHandover, RememberedName};
use super::limits::REMEMBERED_MAX;
use super::remembered_names::{RememberedNames, RobbedTenure};
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
            let robbed: Option<RobbedTenure> = Codec::take(from)?;
            require(robbed.as_ref().is_none_or(|it| it.token.as_u64() < self.mint.upcoming()))?;
            self.insert_memory(name.clone(), owner, previous);
            self.note_robbed(&name, robbed);
        }
        Ok(())
    }
}

impl RememberedNames {
    /// Encodes all names, as [`EngineState::take_names`] decodes them.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        for (name, memory) in &self.0 {
            name.put(out);
            memory.owner.put(out);
            memory.previous.put(out);
            memory.robbed.put(out);
        }
    }
}
