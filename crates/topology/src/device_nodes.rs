//! Which nodes a device hangs off that a list names: `netdev:eth0`, `block:sda`, `pci:3b:00.0`, `file:/path`,
//! `ip:HOST`.

use crate::devices::{PCI, node_of, place_of};
use crate::error::Error;
use crate::list_error::ListErrorKind;
use crate::nodes::Node;
use crate::root::Root;
use crate::set::NodeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// Why a device's node cannot be told.
pub(crate) struct Unresolved {
    pub(crate) kind: ListErrorKind,
    pub(crate) what: String,
}

impl Unresolved {
    fn new(kind: ListErrorKind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into() }
    }

    fn none(what: impl Into<String>) -> Self {
        Self::new(ListErrorKind::NoSuchDevice, what)
    }
}

impl From<Error> for Unresolved {
    fn from(error: Error) -> Self {
        Self::new(ListErrorKind::Unreadable, error.to_string())
    }
}

/// The nodes of the device that `scheme:name` stands for: one, or for a device made of others (a bond, a
/// RAID) all of theirs.
pub(crate) fn nodes_of(root: &Root, nodes: &[Node], scheme: &str, name: &str) -> Result<NodeSet, Unresolved> {
    let look_up = LookUp { root, nodes };
    match scheme {
        "netdev" => look_up.class("sys/class/net", name, "network device"),
        "block" => look_up.class("sys/class/block", name.trim_start_matches("/dev/"), "block device"),
        "pci" => look_up.pci(name),
        "file" => look_up.file(name),
        "ip" => look_up.host(name),
        _ => {
            let what = "expected netdev:, block:, pci:, file: or ip: before the colon";
            Err(Unresolved::new(ListErrorKind::Malformed, what))
        }
    }
}

/// Bonds of bonds and volumes of volumes: deeper than anybody stacks them, and an end for links that go
/// round.
const DEEPEST_STACK: u32 = 8;

struct LookUp<'a> {
    root: &'a Root,
    nodes: &'a [Node],
}

impl LookUp<'_> {
    /// A device by its name in a class directory.
    fn class(&self, class: &str, name: &str, kind: &str) -> Result<NodeSet, Unresolved> {
        // The name becomes part of a path.
        if name.is_empty() || name.contains('/') || name.starts_with('.') || name.contains('\0') {
            return Err(Unresolved::none(format!("'{name}' is no name of a {kind}")));
        }
        let entry = format!("{class}/{name}");
        if self.root.resolve(&entry).is_none() {
            return Err(Unresolved::none(format!("there is no {kind} {name}")));
        }
        let found = self.entry(&entry, DEEPEST_STACK)?;
        self.known(found, &format!("{kind} {name}"))
    }

    fn pci(&self, name: &str) -> Result<NodeSet, Unresolved> {
        let malformed =
            || Unresolved::new(ListErrorKind::Malformed, "expected a PCI address like 0000:3b:00.0");
        let address = pci_address(name).ok_or_else(malformed)?;
        let place = self.root.resolve(&format!("{PCI}/{address}"));
        let place = place.ok_or_else(|| Unresolved::none(format!("there is no PCI device {address}")))?;
        let node = node_of(self.root, self.nodes, &place)?;
        self.known(node.into_iter().collect(), &format!("PCI device {address}"))
    }

    /// The disk a file lies on, or that it is.
    fn file(&self, name: &str) -> Result<NodeSet, Unresolved> {
        let file = std::fs::metadata(name).map_err(|error| Unresolved::none(error.to_string()))?;
        let number = if file.file_type().is_block_device() { file.rdev() } else { file.dev() };
        let (major, minor) = device_number(number);
        let entry = format!("sys/dev/block/{major}:{minor}");
        if self.root.resolve(&entry).is_none() {
            return Err(Unresolved::none("the file does not lie on a block device"));
        }
        let found = self.entry(&entry, DEEPEST_STACK)?;
        self.known(found, "block device of the file")
    }

    /// The interface through which a host is reached.
    fn host(&self, name: &str) -> Result<NodeSet, Unresolved> {
        let address = match name.parse() {
            Ok(address) => address,
            Err(_) => resolve_host(name)?,
        };
        if address.is_loopback() {
            return Err(Unresolved::new(
                ListErrorKind::NodeUnknown,
                "a loopback address is reached through no device",
            ));
        }
        let interface = match address {
            IpAddr::V4(address) => self.interface_to_v4(address)?,
            IpAddr::V6(address) => self.interface_to_v6(address)?,
        };
        let interface =
            interface.ok_or_else(|| Unresolved::none(format!("there is no route to {address}")))?;
        self.class("sys/class/net", &interface, "network device")
    }

    /// The best route of `/proc/net/route`: the longest prefix, of equals the least metric. Rules
    /// (ip-rule(8)) are not heeded.
    fn interface_to_v4(&self, address: Ipv4Addr) -> Result<Option<String>, Unresolved> {
        let Some(table) = self.root.text("proc/net/route")? else { return Ok(None) };
        let mut best = None;
        for (number, line) in table.lines().skip(1).filter(|(_, line)| !line.trim().is_empty()) {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let route = || {
                // Addresses are the bytes of the network order printed as one number of the host.
                let bytes = |field: &str| {
                    Some(u32::from_be_bytes(u32::from_str_radix(field, 16).ok()?.to_ne_bytes()))
                };
                let [interface, destination, _, flags, _, _, metric, mask, ..] = fields[..] else {
                    return None;
                };
                let flags = u32::from_str_radix(flags, 16).ok()?;
                Some((interface, bytes(destination)?, flags, metric.parse::<u32>().ok()?, bytes(mask)?))
            };
            let Some((interface, destination, flags, metric, mask)) = route() else {
                return Err(table
                    .error(number, "expected a route with its interface, destination and mask")
                    .into());
            };
            if flags & ROUTE_REJECT == 0 && u32::from(address) & mask == destination {
                consider(&mut best, mask.count_ones(), metric, interface);
            }
        }
        Ok(best.map(|(_, _, interface)| interface))
    }

    /// The same in `/proc/net/ipv6_route`.
    fn interface_to_v6(&self, address: Ipv6Addr) -> Result<Option<String>, Unresolved> {
        let Some(table) = self.root.text("proc/net/ipv6_route")? else { return Ok(None) };
        let mut best = None;
        for (number, line) in table.lines().filter(|(_, line)| !line.trim().is_empty()) {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let route = || {
                let [destination, prefix, _, _, _, metric, _, _, flags, interface] = fields[..] else {
                    return None;
                };
                let hex = |field: &str| u32::from_str_radix(field, 16).ok();
                let prefix = hex(prefix).filter(|&prefix| prefix <= 128)?;
                let destination = u128::from_str_radix(destination, 16).ok()?;
                Some((interface, destination, hex(flags)?, hex(metric)?, prefix))
            };
            let Some((interface, destination, flags, metric, prefix)) = route() else {
                return Err(table
                    .error(number, "expected a route of ten fields, the last its interface")
                    .into());
            };
            let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
            if flags & ROUTE_REJECT == 0 && u128::from(address) & mask == destination {
                consider(&mut best, prefix, metric, interface);
            }
        }
        Ok(best.map(|(_, _, interface)| interface))
    }

    /// The nodes of an entry of a class directory, through the devices it is made of where it is virtual.
    fn entry(&self, entry: &str, depth: u32) -> Result<NodeSet, Unresolved> {
        if let Some(place) = place_of(self.root, entry)? {
            return Ok(node_of(self.root, self.nodes, &place)?.into_iter().collect());
        }
        let mut found = NodeSet::new();
        if depth > 0 {
            // `slaves/sda` below volumes and RAIDs, `lower_eth0` in bonds, bridges and VLANs.
            let slaves =
                self.root.names(&format!("{entry}/slaves"))?.into_iter().map(|name| format!("slaves/{name}"));
            let lower = self.root.names(entry)?.into_iter().filter(|name| name.starts_with("lower_"));
            for part in slaves.chain(lower) {
                found = &found | &self.entry(&format!("{entry}/{part}"), depth - 1)?;
            }
        }
        Ok(found)
    }

    fn known(&self, found: NodeSet, device: &str) -> Result<NodeSet, Unresolved> {
        if found.is_empty() {
            // Nothing needs to be said where there is one node only.
            if let [only] = self.nodes {
                return Ok(NodeSet::from_iter([only.id]));
            }
            let what = format!("the kernel does not know the node of the {device}");
            return Err(Unresolved::new(ListErrorKind::NodeUnknown, what));
        }
        Ok(found)
    }
}

/// `RTF_REJECT`, include/uapi/linux/route.h: the route forbids.
const ROUTE_REJECT: u32 = 0x200;

/// Keeps the better of two routes: prefix length, metric, interface.
fn consider(best: &mut Option<(u32, u32, String)>, prefix: u32, metric: u32, interface: &str) {
    let better = best.as_ref().is_none_or(|(other, other_metric, _)| {
        prefix > *other || (prefix == *other && metric < *other_metric)
    });
    if better {
        *best = Some((prefix, metric, interface.to_owned()));
    }
}

fn resolve_host(name: &str) -> Result<IpAddr, Unresolved> {
    let unresolved =
        |why: String| Unresolved::none(format!("{name} is no address and does not resolve to one{why}"));
    let mut addresses = (name, 0).to_socket_addrs().map_err(|error| unresolved(format!(": {error}")))?;
    Ok(addresses.next().ok_or_else(|| unresolved(String::new()))?.ip())
}

/// `[seg:]bus:dev[.func]` with the parts left out that are 0, in the kernel's form. numactl writes `:func`,
/// lspci `.func`; both are read.
fn pci_address(name: &str) -> Option<String> {
    let (device, function) = match name.split_once('.') {
        Some((device, function)) => (device, Some(function)),
        None => (name, None),
    };
    let parts: Vec<&str> = device.split(':').collect();
    let (segment, bus, slot, function) = match (&parts[..], function) {
        (&[bus, slot], function) => ("0", bus, slot, function.unwrap_or("0")),
        (&[segment, bus, slot], function) => (segment, bus, slot, function.unwrap_or("0")),
        (&[segment, bus, slot, function], None) => (segment, bus, slot, function),
        _ => return None,
    };
    let hex = |text: &str, most: u32| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u32::from_str_radix(text, 16).ok().filter(|&number| digits && number <= most)
    };
    let (segment, bus) = (hex(segment, u32::MAX)?, hex(bus, 0xff)?);
    let (slot, function) = (hex(slot, 0x1f)?, hex(function, 7)?);
    Some(format!("{segment:04x}:{bus:02x}:{slot:02x}.{function:x}"))
}

/// Major and minor of a device number, in the C library's encoding (makedev(3)).
fn device_number(number: u64) -> (u64, u64) {
    let major = (number >> 8 & 0xfff) | (number >> 32 & !0xfff);
    let minor = (number & 0xff) | (number >> 12 & !0xff & 0xffff_ffff);
    (major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_in_every_form() {
        for name in ["0000:3b:00.1", "0:3b:0.1", "3b:00.1", "0000:3b:00:1"] {
            assert_eq!(pci_address(name).as_deref(), Some("0000:3b:00.1"), "{name}");
        }
        assert_eq!(pci_address("3b:00").as_deref(), Some("0000:3b:00.0"));
        assert_eq!(pci_address("0000:3b:00").as_deref(), Some("0000:3b:00.0"));
        for name in
            ["", "3b", "3b:20.0", "3b:00.8", "100:00.0", "x:00.0", "+b:00.0", "0:0:0:0.0", "3b:00.0.0"]
        {
            assert_eq!(pci_address(name), None, "{name}");
        }
    }

    #[test]
    fn device_numbers_are_split_as_the_c_library_does() {
        assert_eq!(device_number(0x0803), (8, 3));
        // makedev(259, 65536 + 7)
        assert_eq!(device_number((0x1_0000 & !0xff) << 12 | 0x7 | 0x103 << 8), (259, 0x1_0007));
    }
}
