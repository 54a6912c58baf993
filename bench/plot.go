package main

import (
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// A chart shows a metric of one or several cells over a varied quantity: a line for each cell
// and contestant, with the lowest and highest round of each point.
type chart struct {
	file    string
	title   string
	group   string
	whats   []string // nil for all cells of the group
	axis    string   // the varied quantity, where the group has several
	without []string // services, and contestants
	needs   string   // the contestant without whom there is no chart
	log     bool     // the figures have a logarithmic scale
	metric  metric
	per     float64 // factor of the values, if not zero
	unit    string
	zero    bool // the axis begins at zero
}

// charts are all charts; each is drawn if there are results for it.
var charts = []*chart{
	{file: "uncontended", title: "Uncontended lock and release", group: "uncontended", without: []string{keeping.who}, metric: mRate, unit: "cycles a second", zero: true},
	{file: "uncontended-latency", title: "Uncontended lock and release, 99th percentile", group: "uncontended", without: []string{keeping.who}, metric: mP99, per: 1e-3, unit: "ms", zero: true},
	{file: "kept", title: "Lock and release by the same client again", group: "uncontended", whats: []string{whatCycle}, needs: keeping.who, metric: mRate, unit: "cycles a second", log: true},
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
	{file: "services-uncontended", title: "Uncontended lock and release on each service", group: servicesUncontended, without: []string{onMemory}, metric: mRate, unit: "cycles a second", zero: true},
	{file: "services-contended", title: "Clients that contend for one lock", group: servicesContended, without: []string{onMemory}, metric: mRate, unit: "turns a second", zero: true},
	{file: "services-updates", title: "Adding to numbers of their own", group: servicesUpdates, whats: []string{whatOwn}, axis: "callers", without: []string{onMemory}, metric: mRate, unit: "additions a second", zero: true},
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

// drawAgain draws the charts of runs. A run that is yet to come has none.
func drawAgain(dir string, names []string, read func(name string) (*report, error)) error {
	for _, name := range names {
		r, err := read(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			_, err = drawAll(dir, r.Results)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// A line is one contestant's points.
type line struct {
	name       string
	who, where string
	axis       string
	points     points
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
	shown := func(r *result) bool {
		_, ok := r.Figures[c.metric]
		return ok && r.Error == "" && r.Group == c.group && r.Axis != "" && (c.axis == "" || r.Axis == c.axis) &&
			(c.whats == nil || slices.Contains(c.whats, r.What)) && !slices.Contains(c.without, r.Where) && !slices.Contains(c.without, r.Who)
	}
	// A name says what tells the line from the others of its contestant.
	wheres, whats := make(map[string]map[string]bool), make(map[string]map[string]bool)
	for _, r := range results {
		if !shown(r) {
			continue
		}
		if wheres[r.Who] == nil {
			wheres[r.Who], whats[r.Who] = make(map[string]bool), make(map[string]bool)
		}
		wheres[r.Who][r.Where], whats[r.Who][r.What] = true, true
	}
	for _, r := range results {
		if !shown(r) {
			continue
		}
		f := r.Figures[c.metric]
		name := r.Who
		if len(whats[r.Who]) > 1 {
			name += ": " + r.What
		}
		if len(wheres[r.Who]) > 1 {
			name += ", " + r.Where
		}
		l := byName[name]
		if l == nil {
			l = &line{name: name, who: r.Who, where: r.Where, axis: r.Axis}
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
	lines = slices.DeleteFunc(lines, func(l *line) bool { return len(l.points) < 2 })
	if c.needs != "" && !slices.ContainsFunc(lines, func(l *line) bool { return l.who == c.needs }) {
		return nil
	}
	return lines
}

// systems have the same colour in each chart. The colours can be distinguished by readers with colour
// blindness (Okabe and Ito).
var systems = []struct {
	prefix string // of the names of its contestants
	colour color.Color
}{
	{byCoord, color.RGBA{0, 114, 178, 255}},
	{byGoZK, color.RGBA{213, 94, 0, 255}},
	{byCurator, color.RGBA{0, 158, 115, 255}},
	{byKazoo, color.RGBA{204, 121, 167, 255}},
	{byEtcd, color.RGBA{230, 159, 0, 255}},
	{byRaw, color.RGBA{0, 0, 0, 255}},
}

// colourOf returns the colour of a contestant.
func colourOf(who string) color.Color {
	for _, s := range systems {
		if strings.HasPrefix(who, s.prefix) {
			return s.colour
		}
	}
	return color.RGBA{120, 120, 120, 255}
}

// dashesOf returns the dashes of a service, which tell the lines of one system apart.
func dashesOf(where string) []vg.Length {
	switch {
	case strings.HasPrefix(where, onEtcd):
		return []vg.Length{vg.Points(7), vg.Points(3)}
	case where == onMemory:
		return []vg.Length{vg.Points(2), vg.Points(3)}
	}
	return nil
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
	p.Y.Tick.Marker = roundTicks{}
	p.Add(plotter.NewGrid())
	drawn := make(map[string]int) // lines of one colour and dashes
	for _, l := range lines {
		curve, dots, err := plotter.NewLinePoints(l.points)
		if err != nil {
			return nil, err
		}
		bars, err := plotter.NewYErrorBars(l.points)
		if err != nil {
			return nil, err
		}
		colour := colourOf(l.who)
		curve.Color, dots.Color, bars.Color = colour, colour, colour
		curve.Dashes = dashesOf(l.where)
		like := fmt.Sprint(colour)
		dots.Shape = shapes[drawn[like]%len(shapes)]
		drawn[like]++
		p.Add(curve, dots, bars)
	}
	if c.zero {
		p.Y.Min = 0
	}
	p.Y.Max *= 1.05
	if c.log {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, powerTicks{}
		p.Y.Min, p.Y.Max = math.Pow(10, math.Floor(math.Log10(p.Y.Min))), math.Pow(10, math.Ceil(math.Log10(p.Y.Max)))
	}
	labels, err := lineLabels(lines, p.Y.Min, p.Y.Max, c.log)
	if err != nil {
		return nil, err
	}
	p.Add(labels)
	// Room for the labels at the ends of the lines.
	longest := 0
	for _, l := range lines {
		longest = max(longest, len(l.name))
	}
	part := min(0.5, 0.012*float64(longest)+0.02)
	p.X.Max *= math.Pow(p.X.Max/p.X.Min, part/(1-part))
	return p, nil
}

// lineLabels returns the names of the lines at their ends, with some distance between them.
func lineLabels(lines []*line, low, high float64, log bool) (*plotter.Labels, error) {
	sorted := slices.Clone(lines)
	scaled, back := func(v float64) float64 { return v }, func(v float64) float64 { return v }
	if log {
		scaled, back = math.Log10, func(v float64) float64 { return math.Pow(10, v) }
	}
	low, high = scaled(low), scaled(high)
	end := func(l *line) float64 { return scaled(l.points[len(l.points)-1].f.Median) }
	slices.SortStableFunc(sorted, func(a, b *line) int { return cmp.Compare(end(a), end(b)) })
	gap := (high - low) / 26
	at := make([]float64, len(sorted))
	for i, l := range sorted {
		at[i] = max(end(l), low+gap/2)
		if i > 0 {
			at[i] = max(at[i], at[i-1]+gap)
		}
	}
	for i := len(at) - 1; i >= 0; i-- { // the topmost ones stay below the edge
		most := high - gap/2 - gap*float64(len(at)-1-i)
		at[i] = min(at[i], most)
	}
	var text plotter.XYLabels
	right := 0.0
	for _, l := range sorted {
		right = max(right, l.points[len(l.points)-1].x)
	}
	for i, l := range sorted {
		text.XYs = append(text.XYs, plotter.XY{X: right, Y: back(at[i])})
		text.Labels = append(text.Labels, l.name)
	}
	labels, err := plotter.NewLabels(text)
	if err != nil {
		return nil, err
	}
	labels.Offset = vg.Point{X: vg.Points(8), Y: vg.Points(-3)}
	for i, l := range sorted {
		labels.TextStyle[i].Color = colourOf(l.who)
	}
	return labels, nil
}

// valueTicks marks the measured values.
func valueTicks(lines []*line) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	seen := make(map[float64]bool)
	for _, l := range lines {
		for _, pt := range l.points {
			if !seen[pt.x] {
				seen[pt.x] = true
				ticks = append(ticks, plot.Tick{Value: pt.x, Label: thousands(pt.x)})
			}
		}
	}
	return ticks
}

// roundTicks marks five to ten round values.
type roundTicks struct{}

func (roundTicks) Ticks(low, high float64) (ticks []plot.Tick) {
	if !(high > low) {
		return []plot.Tick{{Value: low, Label: thousands(low)}}
	}
	step := math.Pow(10, math.Floor(math.Log10(high-low)))
	for _, part := range []float64{0.1, 0.2, 0.5, 1} {
		if (high-low)/(step*part) <= 10 {
			step *= part
			break
		}
	}
	for i := math.Ceil(low / step); i*step <= high*(1+1e-9); i++ {
		ticks = append(ticks, plot.Tick{Value: i * step, Label: thousands(i * step)})
	}
	return ticks
}

// powerTicks labels powers of ten on a logarithmic scale, and marks the values between them.
type powerTicks struct{}

func (powerTicks) Ticks(low, high float64) (ticks []plot.Tick) {
	for _, t := range (plot.LogTicks{Prec: -1}).Ticks(low, high) {
		if t.Label != "" {
			t.Label = thousands(t.Value)
		}
		ticks = append(ticks, t)
	}
	return ticks
}

// thousands formats a number with commas between groups of three digits.
func thousands(v float64) string {
	text := strconv.FormatFloat(math.Round(v*1e6)/1e6, 'f', -1, 64)
	whole, rest, _ := strings.Cut(text, ".")
	digits := strings.TrimPrefix(whole, "-")
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	if strings.HasPrefix(whole, "-") {
		digits = "-" + digits
	}
	if rest != "" {
		digits += "." + rest
	}
	return digits
}
