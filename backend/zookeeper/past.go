package zookeeper

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
)

// A service that was restored from a backup has another history. A server refuses a session that has seen
// a larger zxid than its own; but the zxids of the other history grow, and soon pass those that the session
// has seen. Then the server takes the session, if the backup has it, although what it remembers is wrong
// there: nodes that it has deleted exist again, and nodes that it has created are missing. The epochs of
// both histories can be equal, so the zxids alone do not show it.
//
// Therefore a session looks, on each new connection and before it uses it, for what it has seen: the node
// of its latest creation or change, the node of its latest deletion, and the latest change that it has read.
// A server that takes the session has applied all of them if it has the same history, and then
//
//   - a node has no earlier zxid of its creation and of its latest change than before;
//   - if it is the same node, its version has not decreased, and an equal version belongs to the same change;
//   - if it is missing, it was deleted, and its nearest ancestor that exists has got or lost a child since the
//     creation of the node (pzxid; servers before 3.6 can set that back at a restart);
//   - a directory has numbered at least as many children as the number in the name of a sequential node;
//   - a node that was deleted is missing, or was created since.
//
// If something of this does not hold, the session is lost. If everything holds, the history can be another
// one all the same: other clients can have written the nodes there. An answer that is no Stat shows nothing.

// past is what a session has seen of the history of the service.
type past struct {
	wrote   sighting // its latest creation or change of a node
	read    sighting // the latest change of a node that it has read
	deleted sighting // its latest deletion: only the zxid of Mzxid is set
}

// sighting is a node as it was at a zxid, that of its latest change.
type sighting struct {
	path         string
	czxid, mzxid int64
	version      int32
	number       int32 // in the name of a sequential node, -1 for other nodes
}

func (x *sighting) see(latest sighting) {
	if latest.mzxid > x.mzxid && len(latest.path) <= mostLookPath {
		*x = latest
	}
}

// committed records a commit of the session that has the zxid. Needs the session's mu.
func (p *past) committed(ops []backend.Op, results []backend.Result, zxid int64) {
	var wrote sighting
	for i := range ops {
		switch op, st := &ops[i], &results[i].Stat; op.Kind {
		case backend.OpCreate:
			if wrote.czxid == zxid && wrote.number >= 0 {
				break // it shows more
			}
			wrote = sighting{results[i].Path, zxid, zxid, 0, -1}
			if op.Mode == backend.PersistentSequential || op.Mode == backend.EphemeralSequential {
				wrote.number = numberOf(wrote.path)
			}
		case backend.OpSetData, backend.OpCarry:
			if wrote.path == "" {
				wrote = sighting{op.Path, st.Czxid, st.Mzxid, st.Version, -1}
			}
		case backend.OpDelete:
			p.deleted.see(sighting{path: op.Path, mzxid: zxid})
		}
	}
	p.wrote.see(wrote)
}

// numberOf returns the number at the end of a sequential name, or -1.
func numberOf(path string) int32 {
	const digits = 10
	if len(path) < digits {
		return -1
	}
	n, err := strconv.ParseUint(path[len(path)-digits:], 10, 31)
	if err != nil {
		return -1
	}
	return int32(n)
}

// saw records what a read has returned. Needs the session's mu.
func (p *past) saw(path string, st *backend.Stat) {
	if st.Mzxid > p.read.mzxid {
		p.read.see(sighting{path, st.Czxid, st.Mzxid, st.Version, -1})
	}
}

// sight is what a session sees of a node when it looks.
type sight struct {
	path string
	code int32
	stat backend.Stat
}

const (
	mostLookPath = 1 << 10 // bytes: a node with a longer path is not looked for
	mostLooks    = 48      // reads
)

// reads returns the nodes to look for. Each node comes before its ancestors: if it is deleted between both
// reads, the answer about the ancestor shows it.
func (p *past) reads() []sight {
	var all []sight
	for _, x := range []*sighting{&p.wrote, &p.read} {
		for path := x.path; path != ""; path = parentOf(path) {
			all = append(all, sight{path: path})
		}
	}
	if p.deleted.path != "" {
		all = append(all, sight{path: p.deleted.path})
	}
	slices.SortStableFunc(all, func(a, b sight) int {
		return cmp.Or(cmp.Compare(len(b.path), len(a.path)), strings.Compare(a.path, b.path))
	})
	all = slices.CompactFunc(all, func(a, b sight) bool { return a.path == b.path })
	return all[:min(len(all), mostLooks)]
}

// parentOf returns the parent of a node, "" for the root.
func parentOf(path string) string {
	if path == "/" || path == "" {
		return ""
	}
	return path[:max(1, strings.LastIndexByte(path, '/'))]
}

// contradicts returns how the nodes show that the service has another history than the session has seen,
// or "".
func (p *past) contradicts(sights []sight) string {
	find := func(path string) *sight {
		if i := slices.IndexFunc(sights, func(s sight) bool { return s.path == path }); i >= 0 {
			return &sights[i]
		}
		return nil
	}
	for _, x := range []*sighting{&p.wrote, &p.read} {
		if x.path != "" {
			if why := x.contradicts(find); why != "" {
				return why
			}
		}
	}
	x := &p.deleted
	if at := find(x.path); at != nil && at.code == codeOK && at.stat.Czxid < x.mzxid {
		return fmt.Sprintf("%.200q exists, although the session deleted it with zxid 0x%x", x.path, x.mzxid)
	}
	return ""
}

func (x *sighting) contradicts(find func(path string) *sight) string {
	at := find(x.path)
	switch {
	case at == nil:
		return ""
	case at.code == codeOK:
		now, same := &at.stat, at.stat.Czxid == x.czxid
		age := now.Version - x.version // it wraps
		if now.Mzxid < x.mzxid || now.Czxid < x.czxid || same && (age < 0 || age == 0 && now.Mzxid != x.mzxid) {
			return fmt.Sprintf("%.200q has version %d of zxid 0x%x, the session has seen version %d of zxid 0x%x", x.path, now.Version, now.Mzxid, x.version, x.mzxid)
		}
		return ""
	case at.code != codeNoNode:
		return ""
	}
	parent := true
	for path := parentOf(x.path); path != ""; path, parent = parentOf(path), false {
		at := find(path)
		switch {
		case at == nil || at.code != codeOK && at.code != codeNoNode:
			return ""
		case at.code == codeNoNode:
			continue
		case at.stat.Pzxid < x.czxid, parent && x.number >= 0 && at.stat.Czxid < x.mzxid && behind(&at.stat, x.number):
			return fmt.Sprintf("%.200q is missing, although the session has seen it with zxid 0x%x", x.path, x.mzxid)
		}
		return ""
	}
	return ""
}

// behind reports whether a directory has not come to the number of a child. Cversion counts creations
// and deletions of children, so Cversion + NumChildren is twice the number of creations. All of it wraps.
func behind(dir *backend.Stat, number int32) bool {
	return dir.Cversion+dir.NumChildren-2*(number+1) < 0
}

// xidLook is the xid of each read of a look. No other request has it.
const xidLook = firstXid - 1

// look is the search on a new connection for what the session has seen. After it is sent, only the reader of
// the connection uses it.
type look struct {
	past     past
	at       instant // when it was sent
	sights   []sight
	answered int
}

// newLook returns the search for what the session has seen, or nil if it has seen nothing.
func (s *session) newLook() *look {
	s.mu.Lock()
	l := &look{past: s.past}
	s.mu.Unlock()
	if l.sights = l.past.reads(); len(l.sights) == 0 {
		return nil
	}
	return l
}

// frames returns the requests.
func (l *look) frames() []byte {
	var out []byte
	for _, x := range l.sights {
		frame := encodeRead(nil, opExists, x.path, false)
		setXid(frame, xidLook)
		out = append(out, frame...)
	}
	return out
}

// looked handles the answer to one read of a look. After the last one the session uses the connection, or
// is lost.
func (c *guardConn) looked(h replyHeader, size int) error {
	body, err := c.scratch(size)
	if err != nil {
		return err
	}
	if err := c.leave(h.code); err != nil {
		return err
	}
	l := c.look
	x := &l.sights[l.answered]
	l.answered++
	x.code = h.code
	if h.code == codeOK {
		var a answer
		if err := a.decode(opExists, body, nil, 0, true); err != nil {
			x.code = codeTooLong // it shows nothing
		}
		x.stat = a.stat
	}
	if l.answered < len(l.sights) {
		return nil
	}
	if why := l.past.contradicts(l.sights); why != "" {
		err := errWentBack(why)
		c.session.lose(err)
		return err
	}
	c.look = nil
	if err := c.answered(l.at); err != nil {
		return err
	}
	return c.join()
}

// join makes the session use the connection, when all of the handshake has been answered.
func (c *guardConn) join() error {
	if c.login != nil || c.look != nil {
		return nil
	}
	c.session.contact(c)
	// The handshake's deadline can be earlier than the first ping.
	return c.SetReadDeadline(time.Now().Add(c.stall))
}

func errWentBack(why string) error {
	return fmt.Errorf("the service has returned to an earlier state, as after restoring a backup: %s", why)
}
