//! Endpoints of all services by source, with an index from address to services.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::names::{ServiceKey, Str};

use super::conflicts::Placements;

/// Endpoints of all services. The shards of a service are ordered by the name of their source.
#[derive(Clone, Debug, Default)]
pub struct Endpoints {
    by_service: imbl::OrdMap<ServiceKey, Arc<[Shard]>>,
    /// Not a hash map because an ordered map takes half the memory.
    by_address: imbl::OrdMap<Str, Arc<[ServiceKey]>>,
    /// Endpoints of hosts that several registries have, and the service that they are assigned to.
    placed: imbl::OrdMap<(ServiceKey, Str), PlacedEndpoints>,
}

/// Endpoints of a service from one source. Nearly every service has a single shard.
type Shard = (Str, Arc<[Endpoint]>);

#[derive(Clone, Debug)]
struct PlacedEndpoints {
    target: Option<ServiceKey>,
    endpoints: Arc<[Endpoint]>,
}

impl Endpoints {
    /// All endpoints of a service, for all ports.
    pub fn of<'a>(&'a self, key: &ServiceKey) -> impl Iterator<Item = &'a Endpoint> + use<'a> {
        self.shards(key).flat_map(|(_, shard)| shard.iter())
    }

    /// Endpoints by source.
    pub fn shards<'a>(&'a self, key: &ServiceKey) -> impl Iterator<Item = (&'a Str, &'a Arc<[Endpoint]>)> + use<'a> {
        self.by_service.get(key).into_iter().flat_map(|shards| shards.iter().map(|(teller, shard)| (teller, shard)))
    }

    /// The address of a service's list of endpoints: equal addresses mean equal endpoints while both lists live.
    pub fn address_of(&self, key: &ServiceKey) -> usize {
        self.by_service.get(key).map_or(0, |shards| shards.as_ptr().addr())
    }

    fn shard(&self, key: &ServiceKey, teller: &Str) -> Option<Arc<[Endpoint]>> {
        self.shards(key).find(|(known, _)| *known == teller).map(|(_, list)| list.clone())
    }

    /// All services that have endpoints.
    pub fn services(&self) -> impl Iterator<Item = &ServiceKey> {
        self.by_service.keys()
    }

    /// Services with an endpoint at this address.
    pub fn at(&self, address: &str) -> &[ServiceKey] {
        self.by_address.get(address).map_or(&[], |keys| keys)
    }

    /// Replaces a shard of a service. False if it is unchanged.
    pub(super) fn replace(&mut self, key: &ServiceKey, shard: &Str, list: Vec<Endpoint>) -> bool {
        let before = self.shard(key, shard);
        if before.as_deref().unwrap_or_default() == list.as_slice() {
            return false;
        }
        for endpoint in before.iter().flat_map(|list| list.iter()) {
            self.forget(key, endpoint);
        }
        let others = self.shards(key).filter(|(teller, _)| *teller != shard);
        let mut shards: Vec<Shard> = others.map(|(teller, list)| (teller.clone(), list.clone())).collect();
        if !list.is_empty() {
            let at = shards.partition_point(|(teller, _)| teller < shard);
            shards.insert(at, (shard.clone(), list.into()));
        }
        // Other shards may have the same address, so all are indexed again.
        let alone: Arc<[ServiceKey]> = [key.clone()].into();
        for endpoint in shards.iter().flat_map(|(_, list)| list.iter()) {
            self.remember(&alone, endpoint);
        }
        if shards.is_empty() {
            self.by_service.remove(key);
        } else {
            self.by_service.insert(key.clone(), shards.into());
        }
        true
    }

    /// Sets the endpoints of a service from one source. Returns the key whose endpoints changed.
    pub(super) fn put(&mut self, key: &ServiceKey, shard: &Str, list: Vec<Endpoint>) -> Option<ServiceKey> {
        let Some(placed) = self.placed.get_mut(&(key.clone(), shard.clone())) else {
            return self.replace(key, shard, list).then(|| key.clone());
        };
        placed.endpoints = list.clone().into();
        let target = placed.target.clone()?;
        self.replace(&target, shard, list).then_some(target)
    }

    /// Moves endpoints of contested services. Returns the keys whose endpoints changed.
    pub(super) fn place(&mut self, placements: &Placements) -> BTreeSet<ServiceKey> {
        let before: Vec<_> = self.placed.keys().filter(|slot| !placements.contains_key(*slot)).cloned().collect();
        let mut changed = BTreeSet::new();
        for slot in before {
            self.move_to(&slot, None, &mut changed);
        }
        for (slot, target) in placements {
            if self.placed.get(slot).is_none_or(|placed| placed.target != *target) {
                self.move_to(slot, Some(target.clone()), &mut changed);
            }
        }
        changed
    }

    /// `None` moves a shard back to its own service.
    fn move_to(
        &mut self,
        slot: &(ServiceKey, Str),
        target: Option<Option<ServiceKey>>,
        changed: &mut BTreeSet<ServiceKey>,
    ) {
        let (key, shard) = slot;
        let (source, endpoints) = match self.placed.remove(slot) {
            Some(placed) => (placed.target, placed.endpoints),
            None => (Some(key.clone()), self.shard(key, shard).unwrap_or_default()),
        };
        changed.extend(source.filter(|source| self.replace(source, shard, Vec::new())));
        let shown = target.clone().unwrap_or_else(|| Some(key.clone()));
        changed.extend(shown.filter(|shown| self.replace(shown, shard, endpoints.to_vec())));
        if let Some(target) = target {
            self.placed.insert(slot.clone(), PlacedEndpoints { target, endpoints });
        }
    }

    /// Nearly every address belongs to one service; its addresses share the list with that one key.
    fn remember(&mut self, alone: &Arc<[ServiceKey]>, endpoint: &Endpoint) {
        for address in &endpoint.addresses {
            let known = self.by_address.get(address).map_or(&[][..], |keys| keys);
            let keys = match known.iter().any(|key| alone.contains(key)) {
                true => continue,
                false if known.is_empty() => alone.clone(),
                false => {
                    let mut keys = [known, alone].concat();
                    keys.sort();
                    keys.into()
                }
            };
            self.by_address.insert(address.clone(), keys);
        }
    }

    fn forget(&mut self, key: &ServiceKey, endpoint: &Endpoint) {
        for address in &endpoint.addresses {
            let Some(known) = self.by_address.get(address) else { continue };
            let keys: Vec<ServiceKey> = known.iter().filter(|k| *k != key).cloned().collect();
            if keys.is_empty() {
                self.by_address.remove(address);
            } else {
                self.by_address.insert(address.clone(), keys.into());
            }
        }
    }
}
