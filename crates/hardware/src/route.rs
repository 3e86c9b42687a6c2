//! Routes: which links a message takes.

use crate::link::Link;

/// For every pair of nodes the route with the fewest hops; of those the one with the least latency, then the
/// widest, then the one through the lowest nodes. Fails with a pair between which there is none.
pub(crate) fn shortest(nodes: usize, links: &[Link]) -> Result<Vec<Vec<Vec<usize>>>, (usize, usize)> {
    let mut routes = Vec::with_capacity(nodes);
    for from in 0..nodes {
        // One more hop a round. Links are tried in file order, so equals stay with the first found.
        let mut found: Vec<Option<Vec<usize>>> = vec![None; nodes];
        found[from] = Some(Vec::new());
        loop {
            let mut next: Vec<Option<Vec<usize>>> = vec![None; nodes];
            for (index, link) in links.iter().enumerate() {
                let Some(so_far) = found[link.from].as_ref() else { continue };
                if found[link.to].is_some() {
                    continue;
                }
                let mut route = so_far.clone();
                route.push(index);
                let better = match &next[link.to] {
                    Some(other) => cost(&route, links) < cost(other, links),
                    None => true,
                };
                if better {
                    next[link.to] = Some(route);
                }
            }
            if next.iter().all(Option::is_none) {
                break;
            }
            for (route, next) in found.iter_mut().zip(next) {
                if next.is_some() {
                    *route = next;
                }
            }
        }
        if let Some(to) = found.iter().position(Option::is_none) {
            return Err((from, to));
        }
        routes.push(found.into_iter().flatten().collect());
    }
    Ok(routes)
}

/// Latency, then the inverse of the narrowest link's bandwidth.
fn cost(route: &[usize], links: &[Link]) -> (f64, f64) {
    let latency = route.iter().map(|&link| links[link].hop_latency_ns).sum();
    let width = route.iter().map(|&link| 1.0 / links[link].gb_per_s).fold(0.0, f64::max);
    (latency, width)
}

/// The links along given nodes; fails with the first pair that no link joins.
pub(crate) fn along(
    from: usize,
    via: &[usize],
    to: usize,
    links: &[Link],
) -> Result<Vec<usize>, (usize, usize)> {
    let ends: Vec<usize> = via.iter().copied().chain([to]).collect();
    let mut at = from;
    ends.into_iter()
        .map(|next| {
            let link = links.iter().position(|link| (link.from, link.to) == (at, next)).ok_or((at, next))?;
            at = next;
            Ok(link)
        })
        .collect()
}
