package backendtest

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"strings"

	"github.com/go-coord/coord/backend"
)

// A step is one step of a script: one call of one session, or the end of a session. Steps
// name nodes and sessions in such a way that any part of a script is a script too.
type step struct {
	what    stepKind
	session int // number of the slot; a slot without a session opens one first
	node    nodeRef
	ops     []scriptOp     // of a commit
	watch   bool           // of a read
	targets []scriptTarget // of an arm, and the reads of a ReadMany
	since   sinceRef       // of an arm
	victim  int            // of stopStep: the index of the session's watch; of stopTreeStep, of its tree watch
}

type stepKind int

const (
	commitStep stepKind = iota
	getStep
	existsStep
	childrenStep
	syncStep
	armStep
	treeStep
	manyStep
	stopStep        // of a watch
	stopTreeStep    // of a tree watch
	lostRequestStep // a commit whose request is lost
	lostReplyStep   // a commit whose reply is lost
	closeStep
	expireStep
	collectStep // a container is made and used, and the service removes it
)

func (k stepKind) String() string {
	return [...]string{"commit", "get", "exists", "children", "sync", "arm", "watch a tree", "read many", "stop a watch", "stop a tree watch",
		"commit, request lost,", "commit, reply lost,", "close", "expire", "use a container until it goes"}[k]
}

// A nodeRef names a node relative to the root of the service: by its path, or
// as one of the latest sequential nodes that were created.
type nodeRef struct {
	path   string
	latest int  // counted from 1; zero for a node named by its path
	below  bool // the node is a child of it
}

func (r nodeRef) String() string {
	if r.below {
		r.below = false
		return r.String() + "/z"
	}
	if r.latest > 0 {
		return fmt.Sprintf("<sequential %d from the end, or %s>", r.latest, r.path)
	}
	return r.path
}

type scriptOp struct {
	kind    backend.OpKind
	node    nodeRef
	data    string
	mode    backend.CreateMode
	version int32
}

func (o scriptOp) String() string {
	switch o.kind {
	case backend.OpCreate:
		mode := [...]string{"persistent", "ephemeral", "persistent sequential", "ephemeral sequential", "container"}[o.mode]
		return fmt.Sprintf("create %s %s %s", o.node, brief(o.data), mode)
	case backend.OpSetData:
		return fmt.Sprintf("set %s %s if version %d", o.node, brief(o.data), o.version)
	case backend.OpCarry:
		return fmt.Sprintf("carry %s %s", o.node, brief(o.data))
	}
	return fmt.Sprintf("%v %s if version %d", o.kind, o.node, o.version)
}

// brief returns short data as it is, and a length and checksum for long data.
func brief(data string) string {
	if len(data) <= 64 {
		return fmt.Sprintf("%q", data)
	}
	return fmt.Sprintf("%d bytes with the sum %x", len(data), crc32.ChecksumIEEE([]byte(data)))
}

type scriptTarget struct {
	node     nodeRef
	children bool
}

// A sinceRef names a zxid: one of the latest that the script has seen, or the one
// before it.
type sinceRef struct {
	latest int // counted from 1; zero for a zxid that is never reached
	before bool
}

func (r sinceRef) String() string {
	switch {
	case r.latest == 0:
		return "the end of time"
	case r.before:
		return fmt.Sprintf("before <zxid %d from the end>", r.latest)
	}
	return fmt.Sprintf("<zxid %d from the end>", r.latest)
}

func (st step) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "session %d: %v", st.session, st.what)
	switch st.what {
	case treeStep:
		fmt.Fprintf(&b, " %s", st.node)
	case getStep, existsStep, childrenStep:
		fmt.Fprintf(&b, " %s", st.node)
		if st.watch {
			b.WriteString(" and watch")
		}
	}
	for _, t := range st.targets {
		what := "the data"
		if t.children {
			what = "the children"
		}
		fmt.Fprintf(&b, " %s of %s,", what, t.node)
	}
	if st.what == armStep {
		fmt.Fprintf(&b, " since %v", st.since)
	}
	for i, op := range st.ops {
		if i > 0 {
			b.WriteString(";")
		}
		fmt.Fprintf(&b, " %v", op)
	}
	return b.String()
}

const scriptSessions = 4

// nearNames are the directories of flavour.near.
var nearNames = []string{"e1", "e2", "e3"}

// flavour selects what a script does beside the usual steps.
type flavour struct {
	// near: the services have directories called e1, e2 and e3 whose sequence numbers reach
	// their end.
	near bool
	// boxes: the services do not remove containers, so they can have children.
	boxes bool
	// large: nodes may hold as much data as fits.
	large bool
	// collects: the services remove containers soon. Their moments differ, so each container
	// that is used is made, used and removed within one step, see goneName.
	collects bool
}

// goneName is the container of collectStep. Other steps look at its path, and may make another node
// there.
const goneName = "gone"

// newScript returns a script of n steps, the same one for the same seed.
func newScript(seed uint64, n int, f flavour) []step {
	g := scriptWriter{rand.New(rand.NewPCG(seed, 0xc00d)), f}
	steps := make([]step, 0, n)
	if f.boxes {
		// A short script that begins with an empty tree would test little.
		for i, path := range []string{"a", "a/x", "b", "box1"} {
			op := scriptOp{kind: backend.OpCreate, node: nodeRef{path: path}}
			if path == "box1" {
				op.mode = backend.Container
			}
			steps = append(steps, step{what: commitStep, session: i % scriptSessions, ops: []scriptOp{op}})
		}
	}
	for len(steps) < n {
		steps = append(steps, g.step())
	}
	return steps
}

type scriptWriter struct {
	*rand.Rand
	flavour
}

// chance reports true in percent of 100 cases.
func (g scriptWriter) chance(percent int) bool { return g.IntN(100) < percent }

func (g scriptWriter) step() step {
	st := step{session: g.IntN(scriptSessions), node: g.node(), watch: g.chance(60), victim: g.IntN(100)}
	if g.collects && g.chance(12) {
		st.what, st.node = collectStep, nodeRef{path: goneName}
		return st
	}
	switch p := g.IntN(1000); {
	case p < 350:
		st.what, st.ops = commitStep, g.ops(1)
	case p < 530:
		st.what, st.ops = commitStep, g.ops(2+g.IntN(4))
	case p < 600:
		st.what = getStep
	case p < 680:
		st.what = existsStep
	case p < 760:
		st.what = childrenStep
	case p < 820:
		st.what, st.targets, st.since = armStep, g.targets(4), g.since()
	case p < 860:
		st.what = treeStep
	case p < 910:
		most := 4
		if g.chance(20) {
			most = 40
		}
		st.what, st.targets = manyStep, g.targets(most)
	case p < 925:
		st.what = syncStep
	case p < 940:
		st.what = stopStep
	case p < 945:
		st.what = stopTreeStep
	case p < 955:
		st.what, st.ops = lostRequestStep, g.ops(1+g.IntN(2))
	case p < 965:
		st.what, st.ops = lostReplyStep, g.ops(1+g.IntN(2))
	case p < 985:
		st.what = closeStep
	default:
		st.what = expireStep
	}
	return st
}

// node names one of a few nodes, so that steps affect the same nodes.
func (g scriptWriter) node() nodeRef {
	path := string("abc"[g.IntN(3)])
	switch {
	case g.near && g.chance(60):
		path = nearNames[g.IntN(len(nearNames))]
	case g.boxes && g.chance(30):
		path = "box" + string("12"[g.IntN(2)])
	case g.collects && g.chance(25):
		path = goneName
	}
	for g.chance(40) && len(path) < 5 {
		path += "/" + string("xy"[g.IntN(2)])
	}
	r := nodeRef{path: path}
	switch {
	case g.chance(20):
		r.latest = 1 + g.IntN(6)
		r.below = g.chance(25)
	case g.chance(3):
		r.path = "" // the root of the service
	case g.chance(2):
		r.path = path + "//bad"
	}
	return r
}

func (g scriptWriter) targets(most int) []scriptTarget {
	if g.chance(2) {
		return nil
	}
	all := make([]scriptTarget, 1+g.IntN(most))
	for i := range all {
		all[i] = scriptTarget{node: g.node(), children: g.chance(50)}
		if i > 0 && g.chance(20) {
			all[i].node = all[0].node
		}
	}
	return all
}

func (g scriptWriter) since() sinceRef {
	if g.chance(30) {
		return sinceRef{}
	}
	return sinceRef{latest: 1 + g.IntN(40), before: g.chance(30)}
}

func (g scriptWriter) ops(n int) []scriptOp {
	if n > 1 && g.chance(10) {
		// Another node in place of one. Trees report both.
		node := g.node()
		return []scriptOp{
			{kind: backend.OpDelete, node: node, version: backend.AnyVersion},
			{kind: backend.OpCreate, node: node, data: strings.Repeat("d", g.IntN(4)), mode: backend.CreateMode(g.IntN(2))},
		}
	}
	if n == 1 && (g.chance(2) || g.boxes && g.chance(10)) {
		// A step may make a child of it only if the service does not remove it then.
		return []scriptOp{{kind: backend.OpCreate, node: nodeRef{path: "box" + string("12"[g.IntN(2)])}, mode: backend.Container}}
	}
	ops := make([]scriptOp, n)
	for i := range ops {
		op := scriptOp{node: g.node(), version: backend.AnyVersion}
		if g.chance(50) {
			op.version = int32(g.IntN(3))
		}
		op.data = strings.Repeat("d", g.IntN(4))
		if g.large && g.chance(5) {
			op.data = strings.Repeat("D", []int{1 << 10, 1 << 16, backend.MaxRequest / 2, backend.MaxRequest - 3000, backend.MaxRequest}[g.IntN(5)]) // not so near the limit that the length of the root matters
		}
		switch p := g.IntN(100); {
		case p < 50:
			op.kind = backend.OpCreate
			op.mode = backend.CreateMode(g.IntN(4))
			if op.mode == backend.Ephemeral && !strings.Contains(op.node.path, "/") && g.chance(80) {
				op.mode = backend.Persistent // a node that can have children is tested by more steps
			}
			if op.mode.Sequential() {
				op.node.latest, op.node.below = 0, false
				op.node.path += "/s-"
			}
		case p < 70:
			op.kind = backend.OpSetData
		case p < 82:
			op.kind = backend.OpDelete
		case p < 85:
			op.kind, op.version = backend.OpCarry, backend.AnyVersion
		default:
			op.kind = backend.OpCheck
		}
		if g.near && g.chance(30) {
			op = scriptOp{kind: backend.OpCreate, node: nodeRef{path: nearNames[g.IntN(3)] + "/s-"}, data: op.data}
			op.mode = []backend.CreateMode{backend.PersistentSequential, backend.EphemeralSequential}[g.IntN(2)]
		}
		if n > 1 && g.chance(60) {
			// Most multis of random operations fail; this lets some succeed.
			op.version = backend.AnyVersion
			if op.kind == backend.OpDelete {
				op.kind = backend.OpSetData
			}
		}
		ops[i] = op
	}
	return ops
}
