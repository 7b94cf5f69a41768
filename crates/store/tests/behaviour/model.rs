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

/// Deleted slots and the freezes that were active then: none may be handed out again while one of
/// these is.
type Kept = HashMap<Slot, Vec<Freeze>>;

pub fn check(store: &dyn Store, steps: Vec<Step>) {
    let mut held: HashMap<Slot, u64> = HashMap::new();
    let mut order: Vec<Slot> = Vec::new();
    let mut freezes: Vec<Freeze> = Vec::new();
    let mut seen: HashMap<Slot, Vec<Freeze>> = HashMap::new();
    let mut kept: Kept = HashMap::new();
    for step in steps {
        match step {
            Step::Put(seeds) => {
                let pages: Vec<Page> = seeds.iter().map(|seed| page(*seed)).collect();
                let mut slots = vec![Slot(0); pages.len()];
                store
                    .put(&pages.iter().collect::<Vec<_>>(), &mut slots)
                    .unwrap();
                for (slot, seed) in slots.into_iter().zip(seeds) {
                    assert!(
                        held.insert(slot, seed).is_none(),
                        "slot {} handed out twice",
                        slot.0
                    );
                    assert!(
                        !kept.contains_key(&slot),
                        "slot {} handed out though frozen",
                        slot.0
                    );
                    order.push(slot);
                    seen.insert(slot, Vec::new());
                }
            }
            Step::Get(index) if !order.is_empty() => {
                let slot = order[index.index(order.len())];
                match held.get(&slot) {
                    Some(seed) => assert_holds(store, slot, &page(*seed)),
                    None => {
                        let error = store.get(slot, &mut Page::ZERO.clone()).unwrap_err();
                        assert_eq!(error.kind, ErrorKind::Corrupt);
                    }
                }
            }
            Step::Delete(indexes) if !order.is_empty() => {
                let slots: Vec<Slot> = indexes
                    .iter()
                    .map(|index| order[index.index(order.len())])
                    .collect();
                store.delete(&slots);
                for slot in slots {
                    if held.remove(&slot).is_some() {
                        let needed: Vec<Freeze> = seen[&slot]
                            .iter()
                            .copied()
                            .filter(|freeze| freezes.contains(freeze))
                            .collect();
                        if !needed.is_empty() {
                            kept.insert(slot, needed);
                        }
                    }
                }
            }
            Step::Freeze => {
                let freeze = store.freeze();
                freezes.push(freeze);
                held.keys()
                    .for_each(|slot| seen.get_mut(slot).unwrap().push(freeze));
            }
            Step::Thaw(index) if !freezes.is_empty() => {
                let freeze = freezes.swap_remove(index.index(freezes.len()));
                store.thaw(freeze);
                kept.values_mut()
                    .for_each(|needed| needed.retain(|other| *other != freeze));
                kept.retain(|_, needed| !needed.is_empty());
            }
            _ => {}
        }
        assert_eq!(store.usage().pages, held.len() as u64);
    }
    held.iter()
        .for_each(|(slot, seed)| assert_holds(store, *slot, &page(*seed)));
}
