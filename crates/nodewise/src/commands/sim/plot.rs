//! The traffic of a machine as a picture, after Figure 3 of Gaud et al. (CACM 58(12), 2015): a drawing of
//! nodes and links for each policy, the loaded ones larger and brighter, and the run times side by side.

use nodewise_hardware::Preset;
use nodewise_sim::Report;
use std::f64::consts::TAU;
use std::fmt::Write as _;

const MARGIN: f64 = 30.0;
/// Side of a drawing of a few nodes and links, and of one of many; and what is written above it.
const PANEL: f64 = 300.0;
const WIDE_PANEL: f64 = 420.0;
const FEW_NODES: usize = 4;
const FEW_LINKS: usize = 8;
const CAPTION: f64 = 46.0;
/// The width that drawings beside each other take at most.
const ROW: f64 = 1260.0;
const TITLE: f64 = 40.0;
const KEY: f64 = 50.0;
const BAR: f64 = 26.0;
/// Radius of a node that has all accesses, where there is room for it; areas are in proportion.
const LARGEST: f64 = 58.0;
/// Nodes are larger than the least by which they can be seen, those that are written into larger yet.
const SMALLEST: f64 = 10.0;
const WRITTEN_INTO: f64 = 22.0;
/// Nodes of a machine up to which words beside them are upright. On more they would cover each other.
const UPRIGHT: usize = 12;
/// Least distance of neighbours on a circle, between which a link has to be seen.
const APART: f64 = 2.0 * SMALLEST + 21.0;
/// Width of a link that is always busy.
const WIDEST: f64 = 13.0;
/// Links up to which there is room to write at each how busy it is.
const LABELLED_LINKS: usize = 16;

const INK: &str = "#1f2933";
const FAINT: &str = "#6b7785";
const USER: &str = "#34618e";
const KERNEL: &str = "#e08e1b";
const WAITING: &str = "#d3d9e0";

type Point = (f64, f64);

/// Draws runs of one program on one machine.
pub fn draw(title: &str, preset: &Preset, runs: &[Report]) -> String {
    let plan = Plan::of(preset);
    let rows = runs.len().div_ceil((ROW / plan.side) as usize).max(1);
    let columns = runs.len().div_ceil(rows);
    let width = 2.0 * MARGIN + (columns as f64 * plan.side).max(2.0 * PANEL);
    let drawings = rows as f64 * (plan.side + CAPTION);
    let height = MARGIN + TITLE + drawings + KEY + runs.len() as f64 * BAR + KEY + MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"{INK}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    // As large as fits.
    let size = ((width - 2.0 * MARGIN) / (title.chars().count() as f64 * 0.65)).min(18.0);
    text(&mut svg, (MARGIN, MARGIN + 14.0), &format!("font-size=\"{size:.1}\" font-weight=\"bold\""), title);
    for (index, run) in runs.iter().enumerate() {
        let left = MARGIN + (index % columns) as f64 * plan.side;
        let top = MARGIN + TITLE + (index / columns) as f64 * (plan.side + CAPTION);
        panel(&mut svg, (left, top), &plan, run);
    }
    let below = MARGIN + TITLE + drawings;
    key(&mut svg, (MARGIN, below));
    bars(&mut svg, (MARGIN, below + KEY), width - 2.0 * MARGIN, runs);
    svg.push_str("</svg>\n");
    svg
}

/// One policy's machine.
fn panel(svg: &mut String, (left, top): Point, plan: &Plan, run: &Report) {
    let middle = left + plan.side / 2.0;
    text(
        svg,
        (middle, top + 14.0),
        "text-anchor=\"middle\" font-size=\"15\" font-weight=\"bold\"",
        &run.policy,
    );
    let local =
        run.local_access_percent.map_or_else(String::new, |percent| format!("{percent:.0} % local, "));
    let caption = format!("{local}{:.0} cycles a DRAM access", run.dram_latency_cycles);
    text(svg, (middle, top + 32.0), &format!("text-anchor=\"middle\" fill=\"{FAINT}\""), &caption);
    let at = |node: usize| {
        let (x, y) = plan.places[node];
        (left + x * plan.side, top + CAPTION + y * plan.side)
    };
    let shares = shares(run);
    let radius = |node: usize| {
        let least = if Some(node) == plan.middle { WRITTEN_INTO } else { SMALLEST };
        (plan.largest * shares[node].sqrt()).max(least)
    };
    let labelled = run.links.len() <= LABELLED_LINKS;
    for link in &run.links {
        let ends = (at(link.from), at(link.to));
        arrow(svg, ends, (radius(link.from), radius(link.to)), link.use_percent, labelled);
    }
    for (node, &place) in plan.places.iter().enumerate() {
        let busy = run.controller_use_percent[node];
        let ((x, y), radius) = (at(node), radius(node));
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\" fill=\"{}\" stroke=\"{INK}\"/>",
            colour(busy)
        );
        let percent = format!("{:.0} %", shares[node] * 100.0);
        // Text that does not fit into a node stands beside it.
        if radius >= WRITTEN_INTO {
            let ink = if busy > 80.0 { "#ffffff" } else { INK };
            let style = format!("text-anchor=\"middle\" fill=\"{ink}\"");
            text(svg, (x, y - 2.0), &format!("{style} font-weight=\"bold\""), &percent);
            text(svg, (x, y + 13.0), &format!("{style} font-size=\"11\""), &format!("node {node}"));
        } else {
            let words = format!("{node}: {percent}");
            if plan.places.len() > UPRIGHT {
                along_ray(svg, (x, y), outwards(place), radius + 6.0, &words);
            } else {
                beside(svg, (x, y), outwards(place), radius, &words);
            }
        }
    }
}

/// Upright text on the outer side of a node.
fn beside(svg: &mut String, (x, y): Point, (dx, dy): Point, radius: f64, words: &str) {
    let anchor = if dx > 0.3 {
        "start"
    } else if dx < -0.3 {
        "end"
    } else {
        "middle"
    };
    let place = (x + dx * (radius + 6.0), y + dy * (radius + 10.0) + 4.0);
    text(svg, place, &format!("text-anchor=\"{anchor}\" font-size=\"11\""), words);
}

/// Text that leads away from a node, turned so that nobody has to read upside down.
fn along_ray(svg: &mut String, (x, y): Point, (dx, dy): Point, far: f64, words: &str) {
    let (x, y) = (x + dx * far, y + dy * far);
    let degrees = dy.atan2(dx).to_degrees();
    let (anchor, degrees) = if dx < 0.0 { ("end", degrees - 180.0) } else { ("start", degrees) };
    let turn = format!("transform=\"rotate({degrees:.1} {x:.1} {y:.1})\"");
    text(svg, (x, y), &format!("text-anchor=\"{anchor}\" font-size=\"11\" dy=\"4\" {turn}"), words);
}

/// The share of all DRAM accesses that each node's memory served.
fn shares(run: &Report) -> Vec<f64> {
    let homes = |home: usize| run.traffic.iter().map(|row| row[home]).sum::<u64>() as f64;
    let accesses: f64 = (0..run.traffic.len()).map(homes).sum();
    (0..run.traffic.len()).map(|home| homes(home) / accesses.max(1.0)).collect()
}

/// A link in one direction, on its right side of the road.
fn arrow(svg: &mut String, ends: (Point, Point), radii: (f64, f64), busy: f64, labelled: bool) {
    let ((x0, y0), (x1, y1)) = ends;
    let length = (x1 - x0).hypot(y1 - y0);
    let (along, aside) = (((x1 - x0) / length, (y1 - y0) / length), ((y0 - y1) / length, (x1 - x0) / length));
    let half = (WIDEST * busy / 100.0).max(1.5) / 2.0;
    let (head, barb) = (half * 1.5 + 4.0, half + 2.5);
    let lane = 3.0 + WIDEST / 4.0 + half / 2.0;
    let point = |far: f64, side: f64| {
        (x0 + along.0 * far + aside.0 * (lane + side), y0 + along.1 * far + aside.1 * (lane + side))
    };
    let (start, end) = (radii.0 + 3.0, length - radii.1 - 3.0);
    let neck = end - head;
    let outline = [
        point(start, -half),
        point(neck, -half),
        point(neck, -barb),
        point(end, 0.0),
        point(neck, barb),
        point(neck, half),
        point(start, half),
    ];
    let points: Vec<String> = outline.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(svg, "<polygon points=\"{}\" fill=\"{}\"/>", points.join(" "), colour(busy));
    if labelled {
        let (x, y) = point(start + 0.35 * (neck - start), barb + 12.0);
        let style = format!("text-anchor=\"middle\" font-size=\"10\" fill=\"{FAINT}\"");
        text(svg, (x, y + 3.5), &style, &format!("{busy:.0} %"));
    }
}

/// The meaning of sizes and colours.
fn key(svg: &mut String, (left, top): Point) {
    let (width, steps) = (120.0, 24);
    let step = width / f64::from(steps);
    for index in 0..steps {
        let busy = 100.0 * f64::from(index) / f64::from(steps - 1);
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"12\" fill=\"{}\"/>",
            left + f64::from(index) * step,
            top + 8.0,
            step + 0.3,
            colour(busy)
        );
    }
    let style = format!("font-size=\"11\" fill=\"{FAINT}\"");
    let lines = [
        "idle to always busy: colour of controllers, colour and width of links",
        "area of a node: its share of all DRAM accesses",
    ];
    for (words, below) in lines.into_iter().zip([18.0, 34.0]) {
        text(svg, (left + width + 10.0, top + below), &style, words);
    }
}

/// Run times, and what the threads did all that time.
fn bars(svg: &mut String, (left, top): Point, width: f64, runs: &[Report]) {
    let longest = runs.iter().map(|run| run.run_time_s).fold(f64::MIN_POSITIVE, f64::max);
    let names = runs.iter().map(|run| run.policy.len()).max().unwrap_or(0) as f64 * 7.5 + 12.0;
    let room = width - names - 150.0;
    for (index, run) in runs.iter().enumerate() {
        let y = top + index as f64 * BAR;
        text(svg, (left + names - 10.0, y + 14.0), "text-anchor=\"end\"", &run.policy);
        let all = (run.user_s + run.kernel_s + run.waiting_s).max(f64::MIN_POSITIVE);
        let mut x = left + names;
        for (part, fill) in [(run.user_s, USER), (run.kernel_s, KERNEL), (run.waiting_s, WAITING)] {
            let length = room * run.run_time_s / longest * part / all;
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{:.1}\" fill=\"{fill}\"/>",
                BAR - 7.0
            );
            x += length;
        }
        let faster = runs[0].run_time_s / run.run_time_s;
        let label = format!("{:.3} ms, x {faster:.2}", run.run_time_s * 1e3);
        text(svg, (x + 8.0, y + 14.0), "", &label);
    }
    let y = top + runs.len() as f64 * BAR + 6.0;
    let mut x = left + names;
    for (name, fill) in [("program", USER), ("kernel", KERNEL), ("waiting at barriers", WAITING)] {
        let _ = writeln!(svg, "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"12\" height=\"12\" fill=\"{fill}\"/>");
        text(svg, (x + 17.0, y + 10.5), &format!("font-size=\"11\" fill=\"{FAINT}\""), name);
        x += 17.0 + name.len() as f64 * 6.0 + 16.0;
    }
}

fn text(svg: &mut String, (x, y): Point, style: &str, words: &str) {
    // XML has no control characters.
    let words = words.replace(char::is_control, " ");
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let space = if style.is_empty() { "" } else { " " };
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\"{space}{style}>{words}</text>");
}

/// From pale over amber to red, by how busy something is.
fn colour(percent: f64) -> String {
    const STOPS: [(f64, [f64; 3]); 4] = [
        (0.0, [190.0, 200.0, 211.0]),
        (0.35, [247.0, 202.0, 92.0]),
        (0.7, [233.0, 110.0, 40.0]),
        (1.0, [168.0, 20.0, 28.0]),
    ];
    let share = (percent / 100.0).clamp(0.0, 1.0);
    let above = STOPS.iter().position(|stop| stop.0 >= share).unwrap_or(STOPS.len() - 1).max(1);
    let ((from, low), (to, high)) = (STOPS[above - 1], STOPS[above]);
    let part = (share - from) / (to - from);
    let [red, green, blue] =
        [0, 1, 2].map(|part_of| (low[part_of] + (high[part_of] - low[part_of]) * part) as u8);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Away from the middle of the drawing.
fn outwards((x, y): Point) -> Point {
    let (dx, dy) = (x - 0.5, y - 0.5);
    let length = dx.hypot(dy);
    if length < 0.01 { (0.0, 1.0) } else { (dx / length, dy / length) }
}

/// Where a machine's nodes are drawn.
struct Plan {
    /// Side of the drawing.
    side: f64,
    /// The place of each node, in a square of side 1.
    places: Vec<Point>,
    /// A node that is linked to all others and has no cores.
    middle: Option<usize>,
    /// Radius of a node that has all accesses.
    largest: f64,
}

impl Plan {
    /// Nodes on a circle, in an order that keeps links short, around the one in the middle. None is so large
    /// that it hides a link between those beside it.
    fn of(preset: &Preset) -> Self {
        const CIRCLE: f64 = 0.36;
        let nodes = preset.nodes.len();
        let few = nodes <= FEW_NODES && preset.links.len() <= FEW_LINKS;
        let side = if few { PANEL } else { WIDE_PANEL.max(nodes as f64 * APART / (TAU * CIRCLE)) };
        let linked = |node: usize| preset.links.iter().filter(|link| link.from == node).count();
        let middle =
            (0..nodes).find(|&node| nodes > 2 && preset.nodes[node].cores == 0 && linked(node) == nodes - 1);
        let around: Vec<usize> = (0..nodes).filter(|&node| Some(node) != middle).collect();
        let order = shortest_circle(preset, &around);
        let mut places = vec![(0.5, 0.5); nodes];
        if let [one, other] = order[..] {
            (places[one], places[other]) = ((0.22, 0.5), (0.78, 0.5));
            return Self { side, places, middle, largest: LARGEST };
        }
        let turn = TAU / order.len() as f64;
        for (index, &node) in order.iter().enumerate() {
            // The first at the upper left, then clockwise.
            let angle = turn * (index as f64 - 0.5) - TAU / 4.0;
            places[node] = (0.5 + CIRCLE * angle.cos(), 0.5 + CIRCLE * angle.sin());
        }
        let beside = CIRCLE * side * (1.0 - turn.cos()) - WIDEST / 2.0;
        Self { side, places, middle, largest: LARGEST.min(beside).max(SMALLEST) }
    }
}

/// An order of nodes around a circle: pairs are swapped as long as that makes the links shorter.
fn shortest_circle(preset: &Preset, nodes: &[usize]) -> Vec<usize> {
    let length = |order: &[usize]| -> usize {
        let place = |node: usize| order.iter().position(|&other| other == node);
        let chord = |(one, other): (usize, usize)| {
            let apart = one.abs_diff(other);
            apart.min(order.len() - apart)
        };
        preset.links.iter().filter_map(|link| place(link.from).zip(place(link.to))).map(chord).sum()
    };
    let mut order = nodes.to_vec();
    let mut shortest = length(&order);
    loop {
        let before = shortest;
        for one in 1..order.len() {
            for other in one + 1..order.len() {
                order.swap(one, other);
                let now = length(&order);
                if now < shortest {
                    shortest = now;
                } else {
                    order.swap(one, other);
                }
            }
        }
        if shortest == before {
            return order;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_sim::LinkReport;

    #[test]
    fn nodes_that_are_linked_are_neighbours() {
        let square = Preset::named("opteron-8385-4n").unwrap();
        assert_eq!(shortest_circle(&square, &[0, 1, 2, 3]), [0, 1, 3, 2]);
        let star = Plan::of(&Preset::named("ace-7").unwrap());
        assert_eq!((star.middle, star.places[7]), (Some(7), (0.5, 0.5)));
    }

    #[test]
    fn colours_go_from_pale_to_red() {
        assert_eq!([0.0, 35.0, 100.0, 120.0].map(colour), ["#bec8d3", "#f7ca5c", "#a8141c", "#a8141c"]);
    }

    /// Corners of what a text covers, of letters as wide as those of a wide font.
    type Covered = (Point, Point, String);

    /// The value of an attribute.
    fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
        element.split_once(&format!(" {name}=\""))?.1.split('"').next()
    }

    fn number(element: &str, name: &str) -> f64 {
        attribute(element, name).unwrap_or_else(|| panic!("{name} of {element}")).parse().unwrap()
    }

    fn texts(svg: &str) -> Vec<Covered> {
        let elements = svg.lines().filter(|line| line.starts_with("<text "));
        let covered = elements.map(|element| {
            let words = element.split_once('>').unwrap().1.trim_end_matches("</text>");
            let size = attribute(element, "font-size").map_or(13.0, |size| size.parse().unwrap());
            let width = words.replace("&lt;", "<").chars().count() as f64 * size * 0.6;
            let (x, y) = (number(element, "x"), number(element, "y"));
            let left = match attribute(element, "text-anchor") {
                Some("middle") => x - width / 2.0,
                Some("end") => x - width,
                _ => x,
            };
            ((left, y - 0.75 * size), (left + width, y + 0.2 * size), words.to_owned())
        });
        covered.collect()
    }

    fn circles(svg: &str) -> Vec<(Point, f64)> {
        let elements = svg.lines().filter(|line| line.starts_with("<circle "));
        elements.map(|e| ((number(e, "cx"), number(e, "cy")), number(e, "r"))).collect()
    }

    fn distance_to_segment((x, y): Point, ((x0, y0), (x1, y1)): (Point, Point)) -> f64 {
        let (dx, dy) = (x1 - x0, y1 - y0);
        let share = (((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy)).clamp(0.0, 1.0);
        (x - x0 - share * dx).hypot(y - y0 - share * dy)
    }

    /// A run in which memory on the given nodes is used, and links are as busy as said.
    fn run_on(preset: &Preset, policy: &str, homes: &[usize], busy: f64) -> Report {
        let nodes = preset.nodes.len();
        let row = (0..nodes).map(|node| u64::from(homes.contains(&node)) * 1000).collect::<Vec<_>>();
        let link = |link: &nodewise_hardware::Link| LinkReport {
            from: link.from,
            to: link.to,
            bytes: 0,
            use_percent: busy,
        };
        Report {
            policy: policy.to_owned(),
            run_time_s: 0.123,
            local_access_percent: Some(100.0),
            dram_latency_cycles: 1234.0,
            user_s: 1.0,
            traffic: vec![row; nodes],
            controller_use_percent: vec![busy; nodes],
            links: preset.links.iter().map(link).collect(),
            ..Report::default()
        }
    }

    #[test]
    fn nothing_covers_anything_else_on_any_machine() {
        for preset in Preset::names().map(|name| Preset::named(name).unwrap()) {
            let all: Vec<usize> = (0..preset.nodes.len()).collect();
            let one = run_on(&preset, "first-touch", &[0], 100.0);
            let two = run_on(&preset, "weighted-interleave:1/1", &all[..2], 10.0);
            let even = run_on(&preset, "interleave", &all, 100.0);
            for runs in [vec![one.clone()], vec![one, two, even]] {
                let title = format!("weighted-foreach on {}, 192 threads, scale 0.015625", preset.name);
                let svg = draw(&title, &preset, &runs);
                let (width, height) = (number(&svg, "width"), number(&svg, "height"));
                let (texts, circles) = (texts(&svg), circles(&svg));
                for (index, ((left, top), (right, bottom), words)) in texts.iter().enumerate() {
                    let inside = *left >= 0.0 && *top >= 0.0 && *right <= width && *bottom <= height;
                    assert!(inside, "{}: '{words}' leaves the picture", preset.name);
                    for ((l, t), (r, b), other) in &texts[index + 1..] {
                        let apart = right <= l || r <= left || bottom <= t || b <= top;
                        assert!(apart, "{}: '{words}' and '{other}'", preset.name);
                    }
                }
                for (drawing, circles) in circles.chunks(preset.nodes.len()).enumerate() {
                    for link in &preset.links {
                        let (from, to) = (circles[link.from], circles[link.to]);
                        let length = (from.0.0 - to.0.0).hypot(from.0.1 - to.0.1);
                        let room = length - from.1 - to.1;
                        assert!(room > 20.0, "{}: {link:?} in drawing {drawing}: {room}", preset.name);
                        for (node, &(centre, radius)) in circles.iter().enumerate() {
                            let away = distance_to_segment(centre, (from.0, to.0));
                            let ends = [link.from, link.to].contains(&node);
                            assert!(ends || away > radius, "{}: {link:?} and node {node}", preset.name);
                        }
                    }
                }
            }
        }
    }

    /// Points along a text that may be turned, as far apart as its letters are high.
    fn points_of_texts(svg: &str) -> Vec<(Vec<Point>, String)> {
        let elements = svg.lines().filter(|line| line.starts_with("<text ")).zip(texts(svg));
        let points = elements.map(|(element, ((left, top), (right, bottom), words))| {
            let turn = attribute(element, "transform").map_or(0.0, |turn| {
                let degrees = turn.trim_start_matches("rotate(").split(' ').next().unwrap();
                degrees.parse::<f64>().unwrap().to_radians()
            });
            let (x, y) = (number(element, "x"), number(element, "y"));
            let down = attribute(element, "dy").map_or(0.0, |dy| dy.parse().unwrap());
            let middle = f64::midpoint(top, bottom) + down - y;
            let steps = ((right - left) / (bottom - top)).ceil() as usize + 1;
            let along = (0..steps).map(|step| left - x + (right - left) * step as f64 / (steps - 1) as f64);
            let turned = |along: f64| {
                (x + along * turn.cos() - middle * turn.sin(), y + along * turn.sin() + middle * turn.cos())
            };
            (along.map(turned).collect(), words)
        });
        points.collect()
    }

    #[test]
    fn many_nodes_and_what_stands_beside_them_are_apart() {
        let apart = |one: Point, other: Point| (one.0 - other.0).hypot(one.1 - other.1);
        for nodes in [9, 12, 13, 16, 23, 24, 40, 64] {
            let mut text = "name = 'ring'\nabout = ''\nline_bytes = 64\n\
                core = { ghz = 1.0, cycles_per_instruction = 1.0, outstanding_misses = 1 }\n\
                controller = { idle_latency_ns = 1.0, service_ns = 1.0 }\n"
                .to_owned();
            writeln!(text, "node = [{{ count = {nodes}, cores = 1, memory_mib = 1 }}]").unwrap();
            for node in 0..nodes {
                let ends = format!("between = [{node}, {}]", (node + 1) % nodes);
                writeln!(text, "[[link]]\n{ends}\ngb_per_s = 1.0\nhop_latency_ns = 1.0").unwrap();
            }
            let preset = Preset::parse(&text, "ring").unwrap();
            let all: Vec<usize> = (0..nodes).collect();
            for homes in [&all[..1], &all[..2], &all] {
                let svg = draw("ring", &preset, &[run_on(&preset, "blocked", homes, 50.0)]);
                let (width, height) = (number(&svg, "width"), number(&svg, "height"));
                let (circles, texts) = (circles(&svg), points_of_texts(&svg));
                for (index, &(centre, radius)) in circles.iter().enumerate() {
                    for (other, far) in &circles[index + 1..] {
                        let room = apart(centre, *other) - radius - far;
                        assert!(room > 20.0, "{nodes} nodes: {room} between {index} and another");
                    }
                }
                for (index, (points, words)) in texts.iter().enumerate() {
                    for &(x, y) in points {
                        assert!(x > 0.0 && y > 0.0 && x < width && y < height, "{nodes} nodes: '{words}'");
                    }
                    for (others, other) in &texts[index + 1..] {
                        let least = points.iter().flat_map(|&one| others.iter().map(move |&o| apart(one, o)));
                        assert!(
                            least.fold(f64::MAX, f64::min) > 9.0,
                            "{nodes} nodes: '{words}' and '{other}'"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn two_runs_on_two_nodes() {
        let preset = Preset::named("dahu-2n").unwrap();
        let run = |policy: &str, run_time_s, traffic: [[u64; 2]; 2], busy: [f64; 2]| Report {
            policy: policy.to_owned(),
            run_time_s,
            local_access_percent: Some(50.0),
            dram_latency_cycles: 300.0 + busy[0],
            user_s: run_time_s,
            kernel_s: run_time_s / 4.0,
            waiting_s: run_time_s * 0.75,
            traffic: traffic.map(|row| row.to_vec()).to_vec(),
            controller_use_percent: busy.to_vec(),
            links: vec![
                LinkReport { from: 0, to: 1, bytes: 0, use_percent: busy[0] },
                LinkReport { from: 1, to: 0, bytes: 0, use_percent: busy[1] },
            ],
            ..Report::default()
        };
        let runs = [
            run("first-touch", 0.004, [[500, 0], [500, 0]], [95.0, 0.0]),
            run("interleave", 0.002, [[250, 250], [250, 250]], [50.0, 50.0]),
        ];
        insta::assert_snapshot!(draw("a < b & c", &preset, &runs));
    }
}
