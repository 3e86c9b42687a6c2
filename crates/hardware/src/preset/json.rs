//! A machine as JSON, with the fields of the TOML files.

use super::{Cache, Controller, CpuNumbering, Preset};
use crate::link::Link;
use crate::{Error, ErrorKind};
use serde_json::{Value, json};
use std::{fs, path::Path};

impl Preset {
    /// A preset in a JSON file with the fields of the TOML ones, as a program writes it that has measured a
    /// machine.
    pub fn load_json(path: impl AsRef<Path>) -> Result<Self, Error> {
        let origin = path.as_ref().display().to_string();
        let refused = |reason: String, line| Error::new(ErrorKind::Malformed, &origin, line, reason);
        let text = fs::read_to_string(path).map_err(|error| Error::unreadable(&origin, &error))?;
        let value: toml::Table =
            serde_json::from_str(&text).map_err(|error| refused(error.to_string(), Some(error.line())))?;
        let text = toml::to_string(&value).map_err(|error| refused(error.to_string(), None))?;
        // Lines of the TOML in between would lead nowhere.
        Self::parse(&text, &origin).map_err(Error::without_line)
    }

    /// The machine as JSON that [`load_json`](Preset::load_json) reads.
    #[must_use]
    pub fn to_json(&self) -> String {
        let cache = |cache: Option<Cache>| {
            cache.map(|cache| {
                json!({
                    "kib": cache.kib,
                    "ways": cache.ways,
                    "latency_cycles": cache.latency_cycles,
                    "cores": cache.cores,
                })
            })
        };
        // TOML, by which it is read, knows no null.
        let without_null = |mut value: Value| {
            if let Value::Object(fields) = &mut value {
                fields.retain(|_, field| !field.is_null());
            }
            value
        };
        let controller = |controller: &Controller| {
            without_null(json!({
                "idle_latency_ns": controller.idle_latency_ns,
                "service_ns": controller.service_ns,
                "write_service_ns": controller.write_service_ns,
                "banks": controller.banks,
                "bank_ns": controller.bank_ns,
                "probe_bytes": controller.probe_bytes,
            }))
        };
        let link = |link: &Link| {
            json!({
                "from": link.from,
                "to": link.to,
                "gb_per_s": link.gb_per_s,
                "hop_latency_ns": link.hop_latency_ns,
                "message_bytes": link.message_bytes,
            })
        };
        let route = |from: usize, to: usize| {
            let via: Vec<usize> = self.routes[from][to].iter().map(|&link| self.links[link].to).collect();
            json!({ "from": from, "to": to, "via": via[..via.len() - 1] })
        };
        let ends = (0..self.nodes.len()).flat_map(|from| (0..self.nodes.len()).map(move |to| (from, to)));
        let routes = ends.filter(|(from, to)| from != to).map(|(from, to)| route(from, to));
        let all = json!({
            "name": self.name,
            "about": self.about,
            "line_bytes": self.line_bytes,
            "core": {
                "ghz": self.core.ghz,
                "cycles_per_instruction": self.core.cycles_per_instruction,
                "threads": self.core.threads,
                "smt_speedup": self.core.smt_speedup,
                "outstanding_misses": self.core.outstanding_misses,
                "adjacent_line_prefetches": self.core.adjacent_line_prefetches,
                "snoop_cycles": self.core.snoop_cycles,
                "atomic_cycles": self.core.atomic_cycles,
            },
            "l1": cache(self.l1),
            "l2": cache(self.l2),
            "llc": cache(self.llc),
            "uncached": self.uncached.map(|times| json!({
                "local_fetch_ns": times.local_fetch_ns,
                "local_store_ns": times.local_store_ns,
                "global_fetch_ns": times.global_fetch_ns,
                "global_store_ns": times.global_store_ns,
            })),
            "controller": controller(&self.controller),
            "node": self.nodes.iter().map(|node| without_null(json!({
                "count": 1,
                "cores": node.cores,
                "memory_mib": node.memory_bytes >> 20,
                "controller": node.controller.as_ref().map(controller),
            }))).collect::<Vec<_>>(),
            "link": self.links.iter().map(link).collect::<Vec<_>>(),
            "route": routes.collect::<Vec<_>>(),
            "distances": self.distances,
            "cpu_numbering": match self.cpu_numbering {
                CpuNumbering::Contiguous => "contiguous",
                CpuNumbering::RoundRobin => "round-robin",
            },
        });
        without_null(all).to_string()
    }
}
