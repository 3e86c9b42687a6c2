//! The machine with its traffic, after Figure 3 of Gaud et al. (CACM 58(12), 2015).

use std::f64::consts::TAU;
use std::fmt::Write as _;

/// The side of the picture.
const SIDE: f64 = 360.0;
/// The radius of the circle on which the nodes are, and that of a node that serves all accesses.
const CIRCLE: f64 = 120.0;
const LARGEST: f64 = 46.0;
const SMALLEST: f64 = 12.0;
/// The width of a line for all accesses.
const WIDEST: f64 = 24.0;
/// Traffic with a smaller share of the accesses is not drawn.
const LEAST_PERCENT: f64 = 0.5;

/// Nodes as discs, whose areas are the shares of the accesses that their memory serves, and the traffic
/// between them as lines. `traffic` has the share of all accesses from each node (row) to each (column), in
/// percent.
pub fn html(out: &mut String, nodes: &[u32], traffic: &[Vec<f64>]) {
    let count = nodes.len();
    let place = |node: usize| {
        let angle = TAU * (node as f64 / count as f64 - 0.25);
        (SIDE / 2.0 + CIRCLE * angle.cos(), SIDE / 2.0 + CIRCLE * angle.sin())
    };
    let _ = writeln!(
        out,
        "<figure class=\"machine\">\n<figcaption>A disc's area is the share of all accesses that the node's \
         memory serves, and a line's width what goes between two nodes.</figcaption>\n\
         <svg viewBox=\"0 0 {SIDE} {SIDE}\" role=\"img\" aria-label=\"traffic between nodes\">"
    );
    for (one, from_one) in traffic.iter().enumerate() {
        for (other, from_other) in traffic.iter().enumerate().skip(one + 1) {
            let percent = from_one[other] + from_other[one];
            if percent >= LEAST_PERCENT {
                let ((x1, y1), (x2, y2)) = (place(one), place(other));
                let _ = writeln!(
                    out,
                    "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke-width=\"{:.1}\">\
                     <title>{percent:.1} % of all accesses</title></line>",
                    (WIDEST * percent / 100.0).max(0.5)
                );
            }
        }
    }
    // The busier one has more than its share.
    let even = 100.0 / count as f64;
    for (node, number) in nodes.iter().enumerate() {
        let (x, y) = place(node);
        let serves: f64 = traffic.iter().map(|row| row[node]).sum();
        let radius = (LARGEST * (serves / 100.0).sqrt()).max(SMALLEST);
        let shade = (50.0 * (serves / even - 1.0)).clamp(0.0, 100.0);
        let _ = writeln!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\" \
             style=\"fill: color-mix(in srgb, var(--bad) {shade:.0}%, var(--same))\"/>\n\
             <text x=\"{x:.1}\" y=\"{y:.1}\" dy=\"4\" text-anchor=\"middle\" class=\"node\">{number}</text>\n\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{serves:.0} %</text>",
            y + radius + 14.0
        );
    }
    out.push_str("</svg>\n</figure>\n");
}
