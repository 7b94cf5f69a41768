//! Any sequence of calls against a plain map of what the store should hold.

use crate::common::*;
use pagetide_store::{ErrorKind, Freeze, Page, Slot, Store};
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Debug, Clone)]
pub enum Step {
    Put(Vec<u64>),
    Get(prop::sample::Index),
    Delete(Vec<prop::sample::Index>),
    Freeze,
    Thaw(prop::sample::Index),
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = any::<prop::sample::Index>();
    let step = prop_oneof![
        3 => prop::collection::vec(0u64..10_000, 1..20).prop_map(Step::Put),
        3 => index.prop_map(Step::Get),
        3 => prop::collection::vec(any::<prop::sample::Index>(), 1..12).prop_map(Step::Delete),
        1 => Just(Step::Freeze),
        1 => any::<prop::sample::Index>().prop_map(Step::Thaw),
    ];
    prop::collection::vec(step, 1..80)
}

/// What the store is to hold.
#[derive(Default)]
struct Model {
    held: HashMap<Slot, u64>,
    /// Every slot ever handed out.
    order: Vec<Slot>,
    freezes: Vec<Freeze>,
    /// The freezes that each slot in use has seen.
    seen: HashMap<Slot, Vec<Freeze>>,
    /// Deleted slots and the freezes that were active then: none may be handed out again while one
    /// of these is.
    kept: HashMap<Slot, Vec<Freeze>>,
}

impl Model {
    fn put(&mut self, store: &dyn Store, seeds: Vec<u64>) {
        let pages: Vec<Page> = seeds.iter().map(|seed| page(*seed)).collect();
        let mut slots = vec![Slot(0); pages.len()];
        let pages: Vec<&Page> = pages.iter().collect();
        store.put(&pages, &mut slots).unwrap();
        for (slot, seed) in slots.into_iter().zip(seeds) {
            let twice = self.held.insert(slot, seed).is_some();
            assert!(!twice, "slot {} handed out twice", slot.0);
            let frozen = self.kept.contains_key(&slot);
            assert!(!frozen, "slot {} handed out though frozen", slot.0);
            self.order.push(slot);
            self.seen.insert(slot, Vec::new());
        }
    }

    fn get(&self, store: &dyn Store, slot: Slot) {
        match self.held.get(&slot) {
            Some(seed) => assert_holds(store, slot, &page(*seed)),
            None => {
                let error = store.get(slot, &mut Page::ZERO.clone()).unwrap_err();
                assert_eq!(error.kind, ErrorKind::Corrupt);
            }
        }
    }

    fn delete(&mut self, slot: Slot) {
        if self.held.remove(&slot).is_some() {
            let mut needed = self.seen[&slot].clone();
            needed.retain(|freeze| self.freezes.contains(freeze));
            if !needed.is_empty() {
                self.kept.insert(slot, needed);
            }
        }
    }

    fn freeze(&mut self, freeze: Freeze) {
        self.freezes.push(freeze);
        for slot in self.held.keys() {
            self.seen.get_mut(slot).unwrap().push(freeze);
        }
    }

    fn thaw(&mut self, freeze: Freeze) {
        for needed in self.kept.values_mut() {
            needed.retain(|other| *other != freeze);
        }
        self.kept.retain(|_, needed| !needed.is_empty());
    }
}

pub fn check(store: &dyn Store, steps: Vec<Step>) {
    let mut model = Model::default();
    for step in steps {
        let some = |index: &prop::sample::Index| model.order[index.index(model.order.len())];
        match step {
            Step::Put(seeds) => model.put(store, seeds),
            Step::Get(index) if !model.order.is_empty() => model.get(store, some(&index)),
            Step::Delete(indexes) if !model.order.is_empty() => {
                let slots: Vec<Slot> = indexes.iter().map(some).collect();
                store.delete(&slots);
                slots.into_iter().for_each(|slot| model.delete(slot));
            }
            Step::Freeze => model.freeze(store.freeze()),
            Step::Thaw(index) if !model.freezes.is_empty() => {
                let index = index.index(model.freezes.len());
                let freeze = model.freezes.swap_remove(index);
                store.thaw(freeze);
                model.thaw(freeze);
            }
            _ => {}
        }
        assert_eq!(store.usage().pages, model.held.len() as u64);
    }
    for (slot, seed) in &model.held {
        assert_holds(store, *slot, &page(*seed));
    }
}
