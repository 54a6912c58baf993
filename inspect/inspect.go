// Package inspect describes what stands under a path: which recipe, its holders, and
// which waiter waits for which. Tree does so for all recipes below a path. It is for
// operators, and for programs that show it to them.
package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// Options are the options of Path and Tree. They may be nil.
type Options struct {
	// Data includes the data that users have stored: the data of contenders and
	// members, values, items, payloads. It can be secret, so without Data only its
	// size is reported. What is meant to be seen is reported in any case: the IDs of
	// contenders and members, data that is the address of a host, and the reasons of
	// revocations and aborts.
	Data bool

	// MaxReads bounds the number of reads: one for each node that matters and one for
	// each list of nodes. The default is 1,000, and 10,000 for Tree, in which each recipe
	// gets at most 1,000. Nodes beyond that are not described, and Truncated is set. If the
	// service has batches (see Features of package backend), many reads of data are one
	// request.
	MaxReads int

	// MaxDepth is for Tree: how many levels below the path it looks at. The default is
	// 32. If there are more, Truncated is set.
	MaxDepth int
}

// withDefaults returns the options of a call with that default of MaxReads.
func (o *Options) withDefaults(op, path string, reads int) (Options, error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	var err error
	switch {
	case opts.MaxReads < 0:
		err = fmt.Errorf("%w: MaxReads %d is negative", coord.ErrInvalid, opts.MaxReads)
	case opts.MaxDepth < 0:
		err = fmt.Errorf("%w: MaxDepth %d is negative", coord.ErrInvalid, opts.MaxDepth)
	}
	if err != nil {
		return opts, &backend.Error{Op: op, Path: path, Err: err}
	}
	opts.MaxReads = cmp.Or(opts.MaxReads, reads)
	opts.MaxDepth = cmp.Or(opts.MaxDepth, defaultDepth)
	return opts, nil
}

// defaultReads is the default of MaxReads.
const defaultReads = 1000

// A Report describes the state under a path, for operators and for programs that
// show it to them. Its JSON has stable names in lower case; String is a text for
// people. Session IDs are written in hex, as in ZooKeeper's own tools, and times are
// in UTC.
//
// The recipe is recognized by the names of nodes that each recipe documents, and by
// their data where the names do not suffice. If several recipes look the same, a note
// says so.
type Report struct {
	Path string `json:"path"` // absolute, the namespace included

	// Recipe is the recipe at the path: "mutex", "rwmutex", "election", "semaphore",
	// "group", "value", "counter", "barrier", "doublebarrier", "queue",
	// "priorityqueue", "delayqueue", "shards", "schedule", "twophase" (which Coordinators and Participants
	// share), "inbox" (of one of its sites). Or it is "missing", "empty", "part"
	// (nodes from within a recipe whose path is further up), "mixture" (of several
	// recipes), or "directory" (the nodes at the path are of no recipe; recipes can be
	// below them). A value, a counter and a barrier can have such nodes below them too: a note says so,
	// and Tree describes them.
	Recipe string `json:"recipe"`

	Summary string    `json:"summary"` // in one line
	At      time.Time `json:"at"`      // when it was read, by this client's clock
	Reads   int       `json:"reads"`   // of nodes and lists, which it took

	// Truncated reports that MaxReads was reached, and not everything is described.
	Truncated bool     `json:"truncated,omitempty"`
	Notes     []string `json:"notes,omitempty"`

	// Foreign lists names of nodes at the path of a recipe that no recipe of coord
	// creates, the first 20 in order. ForeignCount is the number of all such nodes.
	Foreign      []string `json:"foreign,omitempty"`
	ForeignCount int      `json:"foreign_count,omitempty"`

	// One of these is set, or none, or several in a mixture.
	Mutex         *Line          `json:"mutex,omitempty"`
	RWMutex       *Line          `json:"rwmutex,omitempty"`
	Election      *Line          `json:"election,omitempty"`
	Semaphore     *Semaphore     `json:"semaphore,omitempty"`
	Group         *Group         `json:"group,omitempty"`
	Value         *Value         `json:"value,omitempty"` // of a counter too
	Barrier       *Barrier       `json:"barrier,omitempty"`
	DoubleBarrier *DoubleBarrier `json:"doublebarrier,omitempty"`
	Queue         *Queue         `json:"queue,omitempty"` // of each kind
	TwoPhase      *TwoPhase      `json:"twophase,omitempty"`
	Shards        *Shards        `json:"shards,omitempty"`
	Schedule      *Schedule      `json:"schedule,omitempty"`
	Inbox         *Site          `json:"inbox,omitempty"`
	Directory     *Directory     `json:"directory,omitempty"`
}

// A Node is a node by which a client takes part in a recipe.
type Node struct {
	Name    string    `json:"name"`              // within its directory
	Session string    `json:"session,omitempty"` // the session that owns the node
	Since   time.Time `json:"since,omitzero"`    // when it was created, by the service's clock
	Size    int       `json:"size"`              // of its data, in bytes
	Data    []byte    `json:"data,omitempty"`    // with Options.Data

	// Unread says why less is known of the node, such as a missing permission.
	Unread string `json:"unread,omitempty"`
}

// Path describes the state under a path, which is below the client's namespace or "/". It only
// reads, after one Sync. The nodes are read at different moments, so the result is not a
// snapshot: contenders can come or go meanwhile. Nodes that vanish while they are read
// are left out.
//
// A path without a node, and nodes that belong to no recipe, are not errors; the Report
// says so. Of a directory above recipes it describes the first 100 nodes in a word; Tree
// describes what is below in full. If the session is lost, Path begins again on the next one. Errors: that of the
// context; coord.ErrDenied if the path itself may not be read (below it, a note reports
// that); coord.ErrBadPath; coord.ErrInvalid; coord.ErrClosed.
func Path(ctx context.Context, c *coord.Client, path string, o *Options) (*Report, error) {
	const op = "inspect"
	full, root, err := place(c, op, path)
	if err != nil {
		return nil, err
	}
	opts, err := o.withDefaults(op, full, defaultReads)
	if err != nil {
		return nil, err
	}
	r, err := onSession(ctx, c, func(s backend.Session) (*Report, error) {
		x := &inspector{
			s: s, dir: strings.TrimSuffix(full, "/"), root: root, data: opts.Data, left: opts.MaxReads,
			in: &Report{Path: full, At: time.Now().UTC()},
		}
		err := x.inspect(ctx)
		return x.in, err
	})
	if err != nil {
		return nil, &backend.Error{Op: op, Path: full, Err: err}
	}
	return r, nil
}

// onSession runs read on a session of the client, and again on the next one if that
// session is lost.
func onSession[T any](ctx context.Context, c *coord.Client, read func(backend.Session) (*T, error)) (*T, error) {
	for {
		s, err := c.Session(ctx)
		if e, ok := err.(*backend.Error); ok {
			err = e.Err // the error of the call names the call
		}
		if err != nil {
			return nil, err
		}
		r, err := read(s)
		if !errors.Is(err, backend.ErrSessionLost) {
			return r, err
		}
		if ctx.Err() != nil {
			return nil, backend.ContextError(ctx)
		}
	}
}

// inspect reads the path and everything that matters below it.
func (x *inspector) inspect(ctx context.Context) error {
	in := x.in
	defer func() { in.Reads = x.reads }()
	if err := x.s.Sync(ctx, in.Path); err != nil {
		return err
	}
	x.count()
	names, stat, err := x.s.Children(ctx, in.Path, nil)
	if isNotFound(err) {
		in.Recipe = "missing"
		in.Summary = "nothing there: an unused recipe, or a barrier that is not set"
		return nil
	}
	if err != nil {
		return err
	}
	slices.Sort(names)
	if err := x.describe(ctx, names, stat, nil); err != nil {
		return err
	}
	if in.Directory != nil {
		return x.directory(ctx, x.below)
	}
	return nil
}

// describe describes the path, with these children in order. top is what was read of its
// node, unless it is nil.
func (x *inspector) describe(ctx context.Context, names []string, stat backend.Stat, top *seen) error {
	in := x.in
	if i := slices.Index(names, layout.Pin); i >= 0 {
		names = slices.Delete(slices.Clone(names), i, i+1)
	}
	if len(names) == 0 {
		return x.leaf(ctx, stat, top)
	}
	k := sortNames(names)
	var recipes, says []string
	add := func(recipe, summary string) {
		recipes, says = append(recipes, recipe), append(says, summary)
	}
	for _, look := range []func(context.Context, *nameKinds, func(recipe, summary string)) error{
		x.lines, x.semaphore, x.group, x.doubleBarrier, x.queue, x.twoPhase, x.shards, x.schedule, x.inbox,
	} {
		if err := look(ctx, k, add); err != nil {
			return err
		}
	}
	var data []byte
	switch {
	case top != nil:
		data = top.data
	case stat.DataLength > 0:
		r, err := x.get(ctx, in.Path, true)
		if err != nil {
			return err
		}
		data = r.data
	}
	x.setForeign(k, data, stat, len(recipes) > 0 || len(k.parts) > 0)
	switch {
	case len(recipes) == 1:
		in.Recipe, in.Summary = recipes[0], says[0]
	case len(recipes) > 1:
		in.Recipe = "mixture"
		for i, r := range recipes {
			says[i] = r + " (" + says[i] + ")"
		}
		in.Summary = "nodes of several recipes on one path: " + strings.Join(says, ", ")
	case len(k.parts) > 0:
		in.Recipe = "part"
		in.Summary = "nodes from within a recipe, not a recipe of its own: " + strings.Join(k.parts, ", ")
		if up := parent(strings.TrimPrefix(x.dir, x.root)); up != "" {
			in.note("inspect a path further up, such as %s", up)
		}
	default:
		_, marked := layout.ParseMark(data)
		if set := !layout.IsDirectory(data, stat) && (!marked || isBarrier(data)); set && (len(data) > 0 || layout.IsEmptyValue(stat)) {
			// A Value, a Counter or a Barrier with nodes below it.
			in.note("%s below it", plural(len(names), "node"))
			return x.leaf(ctx, stat, &seen{data: data, stat: stat})
		}
		in.Directory = &Directory{Nodes: len(names)}
		in.Recipe, in.Summary = "directory", in.Directory.summary()
	}
	return nil
}

// isBarrier reports whether data is the mark of a barrier.
func isBarrier(data []byte) bool {
	kind, _ := layout.ParseMark(data)
	return kind == layout.KindBarrier
}

// setForeign reports the nodes that no recipe has claimed, if there is a recipe, and data in a
// directory.
func (x *inspector) setForeign(k *nameKinds, data []byte, stat backend.Stat, recipe bool) {
	in := x.in
	for name := range k.fixed {
		k.foreign = append(k.foreign, name)
	}
	slices.Sort(k.foreign)
	x.below = k.foreign
	if recipe {
		in.ForeignCount = len(k.foreign)
		in.Foreign = k.foreign[:min(len(k.foreign), 20)]
	}
	if _, marked := layout.ParseMark(data); recipe && stat.DataLength > 0 && !marked {
		in.note("the node itself holds %s, which no recipe with nodes below it stores", plural(int(stat.DataLength), "byte"))
	}
	if stat.EphemeralOwner != 0 {
		in.note("the node itself is ephemeral")
	}
}

// leaf describes a node without children. top is what was read of it, unless it is nil.
func (x *inspector) leaf(ctx context.Context, stat backend.Stat, top *seen) error {
	in := x.in
	owned := stat.EphemeralOwner != 0
	empty := layout.IsEmptyValue(stat)
	if stat.DataLength == 0 && (layout.IsBareBarrier(nil, stat) || owned) && !empty {
		x.setBarrier(stat)
		if !owned {
			in.note("a node of no bytes that was made by hand, and the directory of a recipe that was never used, look the same")
		}
		return nil
	}
	if stat.DataLength == 0 && !empty {
		in.Recipe = "empty"
		in.Summary = "a directory whose nodes are all gone: a recipe that is not in use"
		return nil
	}
	var data []byte
	switch {
	case top != nil:
		data = top.data
	case !x.take():
		in.Recipe, in.Summary = "value", plural(int(stat.DataLength), "byte")
		return nil
	default:
		var err error
		data, stat, err = x.s.Get(ctx, in.Path, nil)
		if isNotFound(err) {
			in.Recipe, in.Summary = "missing", "nothing there: it was deleted while it was read"
			return nil
		}
		if err != nil {
			return err
		}
	}
	if kind, ok := layout.ParseMark(data); isBarrier(data) {
		x.setBarrier(stat)
		return nil
	} else if layout.IsDirectory(data, stat) {
		in.Recipe, in.Summary = "empty", "a directory without nodes, in which nothing is set"
		return nil
	} else if ok {
		in.Recipe, in.Summary = "empty", "the directory of a "+string(kind)+" that is not in use"
		return nil
	}
	v := &Value{
		Czxid: stat.Czxid, Mzxid: stat.Mzxid, Version: stat.Version,
		Since: utc(stat.Ctime), Modified: utc(stat.Mtime), Session: hexSession(stat), Size: len(data),
	}
	in.Value = v
	in.Recipe, in.Summary = "value", fmt.Sprintf("%s, version %d", plural(v.Size, "byte"), v.Version)
	if n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64); err == nil {
		in.Recipe, in.Summary = "counter", fmt.Sprintf("a number, version %d", v.Version)
		in.note("a value that is a number looks the same")
		if x.data {
			v.Number = &n
			in.Summary = fmt.Sprintf("%d, version %d", n, v.Version)
		}
	}
	if x.data {
		v.Data = data
	}
	if v.Session != "" {
		in.note("the node is ephemeral; a Value and a Counter make persistent ones")
	}
	return nil
}

// setBarrier describes a barrier that is set.
func (x *inspector) setBarrier(stat backend.Stat) {
	owned := stat.EphemeralOwner != 0
	x.in.Recipe, x.in.Summary = "barrier", "set"
	x.in.Barrier = &Barrier{Session: hexSession(stat), Since: utc(stat.Ctime), Ephemeral: owned}
	if owned {
		x.in.Summary = "set until its session ends"
	}
}

// plural returns n with the noun, which gets a plural s unless n is 1.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}

func utc(milliseconds int64) time.Time { return time.UnixMilli(milliseconds).UTC() }

func hexSession(stat backend.Stat) string {
	if stat.EphemeralOwner == 0 {
		return ""
	}
	return fmt.Sprintf("0x%x", uint64(stat.EphemeralOwner))
}
