package main

import (
	"fmt"
	"image/color"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// A chart shows a metric of one or several cells over a varied quantity: a line for each cell
// and contestant, with the lowest and highest round of each point.
type chart struct {
	file   string
	title  string
	group  string
	whats  []string // nil for all cells of the group
	metric metric
	per    float64 // factor of the values, if not zero
	unit   string
	zero   bool // the axis begins at zero
}

// charts are all charts; each is drawn if there are results for it.
var charts = []*chart{
	{file: "uncontended", title: "Uncontended lock and release", group: "uncontended", metric: mRate, unit: "cycles a second", zero: true},
	{file: "uncontended-latency", title: "Uncontended lock and release, 99th percentile", group: "uncontended", metric: mP99, per: 1e-3, unit: "ms", zero: true},
	{file: "waiters-events", title: "Watch events of one release", group: "waiters", metric: mEvents, unit: "events", zero: true},
	{file: "waiters-requests", title: "Requests of all clients at one release", group: "waiters", metric: mRequests, unit: "requests", zero: true},
	{file: "waiters-time", title: "Hand-over with others waiting", group: "waiters", metric: mP50, per: 1e-3, unit: "ms", zero: true},
	{file: "queue-depth", title: "Put, Take and Ack of an item with others in the queue", group: "queues", whats: []string{"cycle of an item"}, metric: mRate, unit: "items a second", zero: true},
	{file: "queue-depth-requests", title: "Requests for an item with others in the queue", group: "queues", whats: []string{"cycle of an item"}, metric: mPackets, unit: "requests", zero: true},
	{file: "queue-batches", title: "Items through a queue, in batches", group: "queues", whats: []string{"put", whatBatches}, metric: mRate, unit: "items a second", zero: true},
	{file: "barrier-time", title: "Round of a double barrier", group: "double barriers", metric: mTime, unit: "ms", zero: true},
	{file: "barrier-requests", title: "Requests of one member in a round of a double barrier", group: "double barriers", metric: mRequests, unit: "requests", zero: true},
	{file: "commit-time", title: "Transaction over sites", group: "two-phase commit", metric: mP50, per: 1e-3, unit: "ms", zero: true},
	{file: "commit-requests", title: "Requests for a transaction over sites", group: "two-phase commit", metric: mRequests, unit: "requests", zero: true},
	{file: "cache-sync", title: "Time until a cache has a subtree", group: "caches", metric: mTime, unit: "ms", zero: true},
}

// drawAll draws the charts for which there are results, as SVG and as PNG, and returns them.
func drawAll(dir string, results []*result) ([]*chart, error) {
	var drawn []*chart
	for _, c := range charts {
		lines := c.lines(results)
		if len(lines) == 0 {
			continue
		}
		p, err := c.draw(lines)
		if err != nil {
			return nil, fmt.Errorf("draw %s: %w", c.file, err)
		}
		for _, format := range []string{".svg", ".png"} {
			if err := p.Save(8*vg.Inch, 5*vg.Inch, filepath.Join(dir, c.file+format)); err != nil {
				return nil, fmt.Errorf("draw %s: %w", c.file, err)
			}
		}
		drawn = append(drawn, c)
	}
	return drawn, nil
}

// A line is one contestant's points.
type line struct {
	name   string
	axis   string
	points points
}

// points are figures over the varied quantity. They have the methods that package plotter
// needs.
type points []struct {
	x float64
	f figure
}

func (p points) Len() int                { return len(p) }
func (p points) XY(i int) (x, y float64) { return p[i].x, p[i].f.Median }
func (p points) YError(i int) (low, high float64) {
	return p[i].f.Median - p[i].f.Min, p[i].f.Max - p[i].f.Median
}

// lines collects the lines of a chart: lines in the order of the results, points ordered by
// the varied quantity. A line needs two points.
func (c *chart) lines(results []*result) []*line {
	var lines []*line
	byName := make(map[string]*line)
	for _, r := range results {
		f, ok := r.Figures[c.metric]
		if !ok || r.Error != "" || r.Group != c.group || r.Axis == "" || c.whats != nil && !slices.Contains(c.whats, r.What) {
			continue
		}
		name := fmt.Sprintf("%s: %s", r.Who, r.What)
		if r.Where == onMemory {
			name += ", " + r.Where
		}
		l := byName[name]
		if l == nil {
			l = &line{name: name, axis: r.Axis}
			byName[name] = l
			lines = append(lines, l)
		}
		if c.per != 0 {
			f.Median, f.Min, f.Max = f.Median*c.per, f.Min*c.per, f.Max*c.per
		}
		// Zero has no logarithm.
		l.points = append(l.points, struct {
			x float64
			f figure
		}{max(r.X, 1), f})
	}
	for _, l := range lines {
		slices.SortFunc(l.points, func(a, b struct {
			x float64
			f figure
		}) int {
			return int(a.x - b.x)
		})
	}
	return slices.DeleteFunc(lines, func(l *line) bool { return len(l.points) < 2 })
}

// colours can be distinguished by readers with colour blindness, and so can the shapes of the
// points (Okabe and Ito).
var colours = []color.Color{
	color.RGBA{0, 114, 178, 255}, color.RGBA{213, 94, 0, 255}, color.RGBA{0, 158, 115, 255}, color.RGBA{204, 121, 167, 255},
	color.RGBA{230, 159, 0, 255}, color.RGBA{86, 180, 233, 255}, color.RGBA{0, 0, 0, 255}, color.RGBA{150, 150, 150, 255},
}

var shapes = []draw.GlyphDrawer{
	draw.CircleGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.CrossGlyph{},
	draw.RingGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.PlusGlyph{},
}

func (c *chart) draw(lines []*line) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = c.title
	p.X.Label.Text = lines[0].axis
	p.Y.Label.Text = c.unit
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = valueTicks(lines)
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.XOffs = vg.Points(6)
	p.Add(plotter.NewGrid())
	for i, l := range lines {
		curve, dots, err := plotter.NewLinePoints(l.points)
		if err != nil {
			return nil, err
		}
		bars, err := plotter.NewYErrorBars(l.points)
		if err != nil {
			return nil, err
		}
		colour := colours[i%len(colours)]
		curve.Color, dots.Color, bars.Color = colour, colour, colour
		dots.Shape = shapes[i%len(shapes)]
		p.Add(curve, dots, bars)
		p.Legend.Add(l.name, curve, dots)
	}
	if c.zero {
		p.Y.Min = 0
	}
	p.Y.Max *= 1.25 // room for the legend
	return p, nil
}

// valueTicks marks the measured values.
func valueTicks(lines []*line) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	seen := make(map[float64]bool)
	for _, l := range lines {
		for _, pt := range l.points {
			if !seen[pt.x] {
				seen[pt.x] = true
				ticks = append(ticks, plot.Tick{Value: pt.x, Label: fmt.Sprintf("%g", pt.x)})
			}
		}
	}
	return ticks
}
