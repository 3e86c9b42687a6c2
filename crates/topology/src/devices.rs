//! Devices and the nodes they hang off.

use crate::error::{Error, ParseError};
use crate::ids::NodeId;
use crate::nodes::Node;
use crate::root::Root;
use crate::set::MAX_ID;
use crate::warnings::Warnings;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub(crate) const PCI: &str = "sys/bus/pci/devices";

/// A device that programs know by a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Device {
    /// `eth0`, `nvme0n1`, `sda`, `card0`, `mlx5_0`; the PCI address of a device without a driver that names
    /// it.
    pub name: String,
    /// The kind of device.
    pub kind: DeviceKind,
    /// The node it is attached to; `None` where firmware does not say.
    pub node: Option<NodeId>,
    /// Its address, `0000:3b:00.0`, or that of the controller it is behind.
    pub pci_address: Option<String>,
    /// Vendor and device number of that address, `8086:10c9`.
    pub pci_id: Option<String>,
}

/// The kinds of [`Device`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum DeviceKind {
    /// A network interface.
    Network,
    /// An `InfiniBand` or `RoCE` adapter.
    Infiniband,
    /// A disk, `NVMe` namespaces included.
    Block,
    /// A graphics card.
    Gpu,
    /// A compute accelerator.
    Accelerator,
}

/// The name of each kind in sysfs, and its PCI base class (PCI Code and ID Assignment Specification).
const KINDS: [(DeviceKind, &str, Option<u32>); 5] = [
    (DeviceKind::Network, "sys/class/net", Some(0x02)),
    (DeviceKind::Infiniband, "sys/class/infiniband", None),
    (DeviceKind::Block, "sys/class/block", Some(0x01)),
    (DeviceKind::Gpu, "sys/class/drm", Some(0x03)),
    (DeviceKind::Accelerator, "sys/class/accel", Some(0x12)),
];

/// The devices, by kind and name.
pub(crate) fn read(root: &Root, nodes: &[Node], warnings: &Warnings) -> Vec<Device> {
    let mut devices = Vec::new();
    for (kind, class, _) in KINDS {
        for name in warnings.known(root.names(class)) {
            let shown = match kind {
                DeviceKind::Gpu => is_card(&name),
                DeviceKind::Block => {
                    !root.exists(&format!("{class}/{name}/partition"))
                        && !warnings.known(is_hidden(root, &format!("{class}/{name}")))
                }
                _ => true,
            };
            if !shown {
                continue;
            }
            let Some(place) = warnings.known(place_of(root, &format!("{class}/{name}"))) else { continue };
            let pci_address = pci_address_in(&place);
            let pci_id = pci_address.as_deref().and_then(|address| warnings.known(pci_id(root, address)));
            let node = warnings.known(node_of(root, nodes, &place));
            devices.push(Device { name, kind, node, pci_address, pci_id });
        }
    }
    let behind: BTreeSet<String> = devices.iter().filter_map(|device| device.pci_address.clone()).collect();
    for address in warnings.known(root.names(PCI)) {
        let kind = warnings.known(kind_of(root, &address)).filter(|_| !behind.contains(&address));
        let Some(kind) = kind else { continue };
        devices.push(Device {
            node: warnings.known(node_of_pci(root, nodes, &address)),
            pci_id: warnings.known(pci_id(root, &address)),
            pci_address: Some(address.clone()),
            name: address,
            kind,
        });
    }
    devices.sort_by_cached_key(|device| (device.kind, natural(&device.name)));
    devices
}

/// The node of a PCI function, by its full address; `None` where it is unknown.
pub(crate) fn node_of_pci(root: &Root, nodes: &[Node], address: &str) -> Result<Option<NodeId>, Error> {
    match root.resolve(&format!("{PCI}/{address}")) {
        Some(place) => node_of(root, nodes, &place),
        None => Ok(None),
    }
}

/// Where in /sys/devices an entry of a class directory is; `None` if there is no such entry, or it is virtual
/// as `lo`, `loop0` and bridges are.
pub(crate) fn place_of(root: &Root, entry: &str) -> Result<Option<PathBuf>, Error> {
    // Entries are links into /sys/devices; before Linux 2.6.25 directories with a link `device`.
    let Some(place) = root.resolve(&format!("{entry}/device")).or_else(|| root.resolve(entry)) else {
        return Ok(None);
    };
    if !place.starts_with("sys/devices/virtual") {
        return Ok(Some(place).filter(|place| place.starts_with("sys/devices")));
    }
    // A disk that several NVMe controllers may lead to (drivers/nvme/host/multipath.c) is below the
    // subsystem; the first controller there stands for it.
    if place.starts_with("sys/devices/virtual/nvme-subsystem") {
        for name in root.numbered(&place.to_string_lossy(), "nvme")? {
            if let Some(controller) = root.resolve(&format!("{}/nvme{name}", place.display())) {
                return Ok(Some(controller));
            }
        }
    }
    Ok(None)
}

/// The node of a device in /sys/devices: a disk has none of its own, its controller has.
pub(crate) fn node_of(root: &Root, nodes: &[Node], place: &Path) -> Result<Option<NodeId>, Error> {
    for ancestor in place.ancestors().filter_map(Path::to_str).take_while(|path| *path != "sys/devices") {
        if let Some(text) = root.text(&format!("{ancestor}/numa_node"))? {
            let node = text.parse(|text| match text.parse::<i32>() {
                Ok(-1) => Ok(None),
                Ok(node) if (0..=MAX_ID as i32).contains(&node) => Ok(Some(NodeId(node.unsigned_abs()))),
                _ => Err(ParseError::new("a node number or -1", text)),
            })?;
            if node.is_some() {
                return Ok(node);
            }
        }
        // Firmware that does not name the node may still say which CPUs are near.
        let near =
            root.list_or_mask(&format!("{ancestor}/local_cpulist"), &format!("{ancestor}/local_cpus"))?;
        if let Some(near) = near.filter(|near| !near.is_empty()) {
            return Ok(nodes.iter().find(|node| near.is_subset(&node.cpus)).map(|node| node.id));
        }
    }
    Ok(None)
}

/// One of the ways to a disk that several may lead to, `nvme0c0n1`, which nobody opens.
fn is_hidden(root: &Root, entry: &str) -> Result<bool, Error> {
    let hidden = root.text(&format!("{entry}/hidden"))?;
    Ok(hidden.is_some_and(|text| text.lines().any(|(_, line)| line.trim() == "1")))
}

/// The last PCI address on the way to a device: the function that drives it.
fn pci_address_in(place: &Path) -> Option<String> {
    place.iter().rev().filter_map(|part| part.to_str()).find(|part| is_pci_address(part)).map(str::to_owned)
}

/// The kind of an otherwise nameless PCI function worth showing.
fn kind_of(root: &Root, address: &str) -> Result<Option<DeviceKind>, Error> {
    let Some(class) = hex(root, &format!("{PCI}/{address}/class"))? else { return Ok(None) };
    let base = class >> 16;
    Ok(KINDS.iter().find(|(_, _, class)| *class == Some(base)).map(|&(kind, _, _)| kind))
}

fn pci_id(root: &Root, address: &str) -> Result<Option<String>, Error> {
    let vendor = hex(root, &format!("{PCI}/{address}/vendor"))?;
    let device = hex(root, &format!("{PCI}/{address}/device"))?;
    Ok(vendor.zip(device).map(|(vendor, device)| format!("{vendor:04x}:{device:04x}")))
}

fn hex(root: &Root, file: &str) -> Result<Option<u32>, Error> {
    let Some(text) = root.text(file)? else { return Ok(None) };
    let number = |text: &str| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    text.parse(|text| number(text).ok_or_else(|| ParseError::new("a hexadecimal number like 0x020000", text)))
        .map(Some)
}

/// `card0` is a card, `card0-DP-1` its connector, `renderD128` the same card again.
fn is_card(name: &str) -> bool {
    crate::root::number_after(name, "card").is_some()
}

/// `0000:3b:00.0`: domain, bus, device, function.
fn is_pci_address(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let widths = [4, 2, 2, 1];
    parts.len() == 4
        && text.matches(':').count() == 2
        && parts
            .iter()
            .zip(widths)
            .all(|(part, width)| part.len() >= width && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Sorts `nvme10n1` after `nvme2n1`: runs of digits count as numbers.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits_at = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(digits_at);
        let digits_end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (digits, tail) = tail.split_at(digits_end);
        parts.push((word.to_owned(), digits.parse().unwrap_or(u64::MAX)));
        rest = tail;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_sort_as_numbers() {
        let mut names = ["nvme10n1", "nvme2n1", "nvme2n0", "eth", "sda"];
        names.sort_by_key(|name| natural(name));
        assert_eq!(names, ["eth", "nvme2n0", "nvme2n1", "nvme10n1", "sda"]);
    }

    #[test]
    fn tells_pci_addresses_from_other_names() {
        assert!(is_pci_address("0000:3b:00.0"));
        assert!(is_pci_address("10000:e1:00.0")); // a VMD domain
        for other in ["0:2:0:0", "pci0000:00", "0000:3b:00", "0000:3b:0g.0", "virtio2"] {
            assert!(!is_pci_address(other), "{other}");
        }
    }
}
