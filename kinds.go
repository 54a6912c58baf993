package coord

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/go-coord/coord/backend"
)

// One path, one recipe.
//
// Every kind of recipe has a name. The directory that a recipe makes bears it as
// its data, the mark: "coord recipe: mutex". A client reads what stands at a path at
// its first use, and again when the directory has been missing. It refuses, with a
// KindError, before it writes anything, if it meets
//
//   - the mark of another kind;
//   - the nodes of another kind: see kindOfName for the names in one directory, and
//     layouts for the recipes of several nodes;
//   - data that is no mark in a node that never had a child: a Value or a Counter;
//   - no data in a node that never had a child and was written since its creation: a
//     Value of no bytes. Nothing else writes no data; a Value that is created so is
//     written twice.
//
// Directories without a mark come from Curator, from kazoo and from versions of this
// library that wrote none. Where such a directory is empty of data, the first
// creation of a node in it writes the mark under the version that was read, so of
// two kinds that come at once the second one fails and looks again. Where it has data
// and had children before, it is used, and its data is left alone. None of the
// others looks at the data of a directory.
//
// The mark also keeps an uncontended acquisition at one round trip: the commit that
// creates the node writes the mark once more, and its Stat tells the number of
// siblings. It does so at any version, since each contender raises the version. Only
// a node that was found to bear the mark is written so. What can be lost that way is
// data that something other than a recipe of this package writes over the mark of a
// directory in use: the next creation of each client that has looked before replaces
// it. That client notices: each creation raises the version of the directory by one
// and its number of creations by one, and a foreign write raises the first alone. It
// logs that and writes there no more. (A creation by a client of another make can
// hide such a write, since it raises the second alone.) Likewise a directory that is
// deleted, and made again as something else, is overwritten once by a client that
// knew it before. The Stat shows that client that the directory is another one. It lists
// it, and if nodes of another kind stand there it takes its node and its mark back, and
// refuses. Where none stand, as in a lock that nobody holds, it has taken the path over;
// what was made there with a Value is then refused by its next read.
//
// Exclusion does not rest on the mark. Whoever is not alone in the directory of a line
// lists it before it is granted, and withdraws if a contender of another kind came
// before it. So of two kinds on one path only the first one is granted, also where
// the mark is missing, denied or overwritten.

// recipeKind is the name of a kind of recipe, or of a directory within one.
type recipeKind string

const (
	kindMutex         recipeKind = "mutex"
	kindRWMutex       recipeKind = "rwmutex"
	kindElection      recipeKind = "election"
	kindSemaphore     recipeKind = "semaphore"
	kindGroup         recipeKind = "group"
	kindBarrier       recipeKind = "barrier"
	kindDoubleBarrier recipeKind = "doublebarrier"
	kindQueue         recipeKind = "queue"
	kindPriorityQueue recipeKind = "priorityqueue"
	kindDelayQueue    recipeKind = "delayqueue"
	kindTwoPhase      recipeKind = "twophase"
	kindValue         recipeKind = "value"   // bears no mark
	kindCounter       recipeKind = "counter" // bears no mark

	// Directories within a recipe.
	kindRequests recipeKind = "part of a semaphore"
	kindMembers  recipeKind = "part of a doublebarrier"
	kindWaiters  recipeKind = "part of a queue"

	// Those of others.
	kindKazooLock        recipeKind = "lock or election of kazoo"
	kindCuratorSemaphore recipeKind = "semaphore of Curator"
	kindCuratorLeases    recipeKind = "part of a semaphore of Curator"
)

// admits reports whether a recipe of kind k can stand where found does.
func (k recipeKind) admits(found recipeKind) bool {
	switch {
	case found == k:
		return true
	case found == kindKazooLock: // kazoo's names do not tell
		return k == kindMutex || k == kindElection
	case k == kindValue || k == kindCounter: // a number is both
		return found == kindValue || found == kindCounter
	}
	return false
}

// markPrefix begins the data of a recipe's directory; the kind follows.
const markPrefix = "coord recipe: "

func (k recipeKind) mark() []byte { return []byte(markPrefix + string(k)) }

// parseMark reads a mark, also of a kind that this version does not know.
func parseMark(data []byte) (recipeKind, bool) {
	rest, ok := bytes.CutPrefix(data, []byte(markPrefix))
	if !ok || len(rest) == 0 || len(rest) > 64 {
		return "", false
	}
	for _, c := range rest {
		if c != ' ' && (c < 'a' || c > 'z') {
			return "", false
		}
	}
	return recipeKind(rest), true
}

// kindOfName tells of which kind the nodes with such names are, and the number of the
// node, or "" for a name that tells nothing.
func kindOfName(name string) (recipeKind, int32) {
	if n, ok := parseMember(name); ok {
		return kindGroup, n.seq // its id can look like anything
	}
	if q, ok := sharedLine.parse(name); ok {
		return kindRWMutex, q.seq
	}
	if seq, ok := parseSeq(name, kazooLockKind); ok {
		return kindKazooLock, seq
	}
	if !strings.HasPrefix(name, guidPrefix) {
		return "", 0
	}
	if q, ok := parsePermit(name); ok {
		return kindRequests, q.seq
	}
	for _, x := range [...]struct {
		infix string
		kind  recipeKind
	}{
		{lockKind, kindMutex}, {latchKind, kindElection}, {"lease-", kindCuratorLeases},
		{waiterKind, kindWaiters}, {entrantKind, kindMembers}, {extraKind, kindMembers},
	} {
		if seq, ok := parseSeq(name, x.infix); ok {
			return x.kind, seq
		}
	}
	return "", 0
}

// layouts are the fixed names by which a recipe of several nodes is told where its
// directory bears no mark: all of them stand there.
var layouts = []struct {
	kind  recipeKind
	names []string
}{
	{kindSemaphore, []string{"limit", "requests"}},
	{kindDoubleBarrier, []string{"members", "ready"}},
	{kindQueue, []string{"items", "waiters"}}, // of any kind of queue
	{kindTwoPhase, []string{"sites", "tx"}},
	{kindCuratorSemaphore, []string{"leases", "locks"}},
}

// kindAmong returns the kind of recipe, other than those that k admits, of which
// there are nodes among names, or "".
func (k recipeKind) kindAmong(names []string) recipeKind {
	for _, name := range names {
		if found, _ := kindOfName(name); found != "" && !k.admits(found) {
			return found
		}
	}
	for _, l := range layouts {
		missing := slices.ContainsFunc(l.names, func(name string) bool { return !slices.Contains(names, name) })
		if !missing && !k.admits(l.kind) && !(l.kind == kindQueue && k.isQueue()) {
			return l.kind
		}
	}
	return ""
}

func (k recipeKind) isQueue() bool {
	return k == kindQueue || k == kindPriorityQueue || k == kindDelayQueue
}

// isAddress reports whether data is what Curator gives a node by default: the
// address of its host.
func isAddress(data []byte) bool {
	text, _, _ := strings.Cut(string(data), "%") // a zone
	return len(data) <= 100 && strings.Trim(text, "0123456789abcdefABCDEF.:") == "" &&
		(strings.Count(text, ".") == 3 || strings.Count(text, ":") >= 2)
}

// isEmptyValue reports whether a node is a Value of no bytes. A directory that nobody has
// used yet, of Curator's, kazoo's or an operator's, was never written; one that was used
// has had children.
func isEmptyValue(stat backend.Stat) bool {
	return stat.DataLength == 0 && stat.Version > 0 && stat.Cversion == 0 && stat.EphemeralOwner == 0
}

// ground is a path that a recipe uses.
type ground struct {
	dir    string
	recipe recipeKind

	// If dir belongs to a recipe that stands further up: where, and its kind.
	top   string
	whole recipeKind
}

// within returns the ground of a directory of the recipe at g; of one that is a recipe
// of its own if g is zero.
func (g ground) within(dir string, recipe recipeKind) ground {
	return ground{dir: dir, recipe: recipe, top: g.dir, whole: g.recipe}
}

// footing is what a client knows of a ground.
type footing struct {
	kind    recipeKind
	mark    []byte // what a creation may write; nil: nothing
	version int32  // at this version: AnyVersion if the mark stands there
	czxid   int64  // 0: not known

	// A creation raises both counts that drift is the difference of: writes of the
	// directory, and creations in it. As of the commit zxid.
	drift int64
	zxid  int64
}

// footing returns what is known of g. What is not known it reads, and refuses with a
// KindError; or with ErrNotFound if nothing is there.
func (s *session) footing(ctx context.Context, g ground) (footing, error) {
	if f, ok := s.c.known(g); ok {
		return f, nil
	}
	data, stat, err := s.b.Get(ctx, g.dir, nil)
	if answers(err, backend.ErrDenied) {
		f := footing{kind: g.recipe}
		s.c.learn(g.dir, f)
		return f, nil
	}
	if err != nil {
		return footing{}, err
	}
	return s.examine(ctx, g, data, stat)
}

// examine decides whether what was read at g is a place for its kind.
func (s *session) examine(ctx context.Context, g ground, data []byte, stat backend.Stat) (footing, error) {
	f := footing{
		kind: g.recipe, czxid: stat.Czxid, version: stat.Version, zxid: max(stat.Mzxid, stat.Pzxid),
		// Cversion is twice the creations, less the children.
		drift: int64(stat.Version) - (int64(stat.Cversion)+int64(stat.NumChildren))/2,
	}
	refuse := func(found recipeKind) (footing, error) {
		s.c.unlearn(g.dir)
		return footing{}, &KindError{Path: g.dir, Want: string(g.recipe), Found: string(found)}
	}
	leaf := g.recipe == kindValue || g.recipe == kindCounter
	if found, ok := parseMark(data); ok {
		if !g.recipe.admits(found) {
			return refuse(found)
		}
		if found == g.recipe {
			f.mark, f.version = data, backend.AnyVersion
		}
		s.c.learn(g.dir, f)
		return f, nil
	}
	if stat.NumChildren > 0 {
		names, _, err := s.b.Children(ctx, g.dir, nil)
		if err != nil && !answers(err, backend.ErrDenied) {
			return footing{}, err
		}
		if found := g.recipe.kindAmong(names); found != "" {
			return refuse(found)
		}
	}
	if len(data) > 0 && !leaf && !isAddress(data) && (stat.Cversion == 0 || g.recipe == kindBarrier) {
		if _, err := parseCount(data); err == nil {
			return refuse(kindCounter)
		}
		return refuse(kindValue)
	}
	if isEmptyValue(stat) && !leaf {
		return refuse(kindValue)
	}
	if len(data) == 0 && stat.EphemeralOwner == 0 && !leaf {
		f.mark = g.recipe.mark()
	}
	s.c.learn(g.dir, f)
	return f, nil
}

// occupy makes sure, at the first use, that g is of its kind and bears its mark, for
// recipes that make no sequential nodes there.
func (s *session) occupy(ctx context.Context, g ground) error {
	for {
		f, err := s.footing(ctx, g)
		switch {
		case isNotFound(err):
			if err := s.makeDir(ctx, g); err != nil {
				return err
			}
			continue
		case err != nil || f.mark == nil || f.version == backend.AnyVersion:
			return err
		}
		_, err = s.b.Commit(ctx, backend.SetData(g.dir, f.mark, f.version))
		switch {
		case err == nil:
			f.version = backend.AnyVersion
			s.c.learn(g.dir, f)
			return nil
		case answers(err, backend.ErrDenied):
			s.c.leaveAlone(g)
			return nil
		case mayRepeat(ctx, err), isNotFound(err), errors.Is(err, backend.ErrBadVersion):
			s.c.unlearn(g.dir)
		default:
			return s.notSent(ctx, err)
		}
	}
}

// occupyAnew is occupy when g was found to be missing.
func (s *session) occupyAnew(ctx context.Context, g ground) error {
	s.c.unlearn(g.dir)
	return s.occupy(ctx, g)
}

// meet is occupy for calls that make nothing: that nothing stands there is no error.
func (s *session) meet(ctx context.Context, g ground) error {
	_, err := s.footing(ctx, g)
	if isNotFound(err) {
		return nil
	}
	return err
}

// known returns what the client knows of g. What it knows of another kind there is
// not believed: the directory can have been replaced.
func (c *Client) known(g ground) (footing, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok := c.grounds[g.dir]
	return f, ok && f.kind == g.recipe
}

func (c *Client) learn(dir string, f footing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	makeRoom(c.grounds)
	c.grounds[dir] = f
}

func (c *Client) unlearn(dir string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.grounds, dir)
}

// leaveAlone notes that the data of g is not to be written.
func (c *Client) leaveAlone(g ground) {
	f, _ := c.known(g)
	c.learn(g.dir, footing{kind: g.recipe, czxid: f.czxid})
}

// wrote notes the Stat that came with the mark which was written along with the
// creation of the node with number seq, and looks for a foreign write before it. It
// reports true if the directory is not the one that was known: it was deleted, and made
// again, and the mark may be written over that of another kind.
func (c *Client) wrote(g ground, seq int32, dir backend.Stat) (anew bool) {
	now := footing{
		kind: g.recipe, version: backend.AnyVersion, czxid: dir.Czxid,
		drift: int64(dir.Version) - int64(seq) - 1, zxid: dir.Mzxid,
	}
	c.mu.Lock()
	was, ok := c.grounds[g.dir]
	switch {
	case !ok || was.kind != now.kind:
		c.mu.Unlock()
		return true // refused, or used as another kind, while the reply was on its way
	case was.zxid >= now.zxid || was.mark == nil:
		c.mu.Unlock()
		return false // a reply that came late
	}
	foreign := was.czxid == now.czxid && now.drift > was.drift
	if !foreign {
		now.mark = was.mark
	}
	c.grounds[g.dir] = now
	c.mu.Unlock()
	if foreign {
		c.log.Warn("coord: data that is no recipe's was written to the path of a recipe and is overwritten; it is left alone from now on", "path", g.dir, "recipe", string(g.recipe))
	}
	return was.czxid != 0 && was.czxid != now.czxid
}

// examineAnew refuses if nodes of another kind stand at g, where the node at path was made
// and a mark written by a client that knew an earlier directory. dir is the Stat that came
// with them. The mark goes together with the node: without one the other nodes tell of
// which kind the directory is, and the next use of it writes its mark.
func (s *session) examineAnew(ctx context.Context, g ground, path string, dir backend.Stat) error {
	names, _, err := s.b.Children(ctx, g.dir, nil)
	if errors.Is(err, backend.ErrDenied) {
		return nil
	}
	if err != nil {
		return err
	}
	found := g.recipe.kindAmong(names)
	if found == "" {
		return nil
	}
	s.c.unlearn(g.dir)
	_, err = s.b.Commit(ctx, backend.Delete(path, backend.AnyVersion), backend.SetData(g.dir, nil, dir.Version))
	if err != nil && !errors.Is(err, backend.ErrBadVersion) { // else another has written its mark since
		s.c.log.Warn("coord: the mark of a recipe stands on the path of another one", "path", g.dir, "recipe", string(g.recipe), "found", string(found), "error", err)
	}
	return &KindError{Path: g.dir, Want: string(g.recipe), Found: string(found)}
}

// KindError says that a recipe met another one on its path. It matches ErrKind. Nothing
// was written to the path; a contender of a line that another kind was faster than has
// withdrawn its node.
//
// The directory of a recipe bears the name of its kind as data. An outsider that writes
// over it while clients use the directory loses that write to the next one of them that
// creates a node, which logs it and then leaves the data alone. A path that was deleted,
// and made again as something else, is written to once by a client that used it before: it
// takes that back, and refuses, if it finds nodes of another recipe there.
type KindError struct {
	Path  string // absolute, the namespace included
	Want  string // the kind that the call is of, as Inspection.Recipe names it
	Found string // what is there
}

// Error returns the reason, without the path: the error that wraps it names that.
func (e *KindError) Error() string {
	return ErrKind.Error() + ": in use as " + strconv.Quote(e.Found) + ", not as " + strconv.Quote(e.Want)
}

// Is reports whether target is ErrKind.
func (e *KindError) Is(target error) bool { return target == ErrKind }
