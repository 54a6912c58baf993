package etcd

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/go-coord/coord/backend"
)

// A node is one key. The key of a node names its parent first, so that the children of a node are
// one range of keys, and so are all the nodes below it:
//
//	/              PREFIX/
//	/a             PREFIX//a
//	/a/b           PREFIX/a//b
//	children of p  all keys with the prefix PREFIX p//
//	below p        all keys with the prefix PREFIX p/
//
// The number of a sequential node is not known before its commit. So its key has an end that no
// other key has instead of the number, behind a zero byte, which no path contains. The number is the
// create revision of the key, times places, plus the place of the node among the new nodes of its
// commit:
//
//	/a/n-0000001285   PREFIX/a//n- 00 "05" END, created in revision 10
//
// No two commits conflict about a number, and nothing is written for it but the node itself.
//
// A deleted key stays in the index of a server until a compaction, and each count of the children
// visits it. A directory in which nodes come and go, such as that of a lock, would be the slower the
// more often it was used. So the session of an ephemeral sequential node uses the key again for another
// one, see keyring. If its name and its data are short, the name is in the value, so that nodes with other
// names can have the key too. Only the create revision tells whether a key is that of a node still:
//
//	/a/n-0000001285   PREFIX/a// 00 "05" END, created in revision 10

// places is the number of sequential nodes that one commit can create. A server takes no more
// operations in one commit.
const places = 128

// rootKey is the key of "/".
func (c *config) rootKey() string { return c.prefix + "/" }

// sessionKey is the key of a session.
func (c *config) sessionKey(id int64) string { return fmt.Sprintf("%s:session/%016x", c.prefix, id) }

// containerKey is the second key of the container at path.
func (c *config) containerKey(path string) string { return c.prefix + ":container" + path }

// sweeperKey is the key of the session that searches for empty containers.
func (c *config) sweeperKey() string { return c.prefix + ":sweeper" }

// literalKey returns the key of a node that was created under the name that its path shows.
func (c *config) literalKey(path string) string {
	if path == "/" {
		return c.rootKey()
	}
	dir, name := split(path)
	return c.kids(dir) + name
}

// kids returns the prefix of the keys of the children.
func (c *config) kids(path string) string {
	if path == "/" {
		return c.prefix + "//"
	}
	return c.prefix + path + "//"
}

// below returns the prefix of the keys of all nodes below the node at path. For the root it is
// also the root's own key.
func (c *config) below(path string) string {
	if path == "/" {
		return c.prefix + "/"
	}
	return c.prefix + path + "/"
}

// after returns the end of the range of the keys with a prefix.
func after(prefix string) string {
	end := []byte(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return string(end[:i+1])
		}
	}
	return "\x00"
}

// split returns the path of the parent, and the name.
func split(path string) (dir, name string) {
	i := strings.LastIndexByte(path, '/')
	return path[:max(i, 1)], path[i+1:]
}

// numbered returns the prefix of the keys of sequential nodes with a path, which lacks the number.
func (c *config) numbered(path string, place int) string {
	return c.literalKey(path) + placeMark(place)
}

// nameless returns the prefix of the keys of sequential children that have their names in the value.
func (c *config) nameless(dir string, place int) string { return c.kids(dir) + placeMark(place) }

func placeMark(place int) string { return fmt.Sprintf("\x00%02x", place) }

// isNumbered reports whether a key is that of a sequential node.
func isNumbered(key string) bool { return strings.IndexByte(key, 0) >= 0 }

// pathOf returns the path of the node with a key, and false for the key of no node. The
// value is needed only if a zero byte is the first of the name in the key.
func (c *config) pathOf(kv *mvccpb.KeyValue) (string, bool) {
	rest, ok := strings.CutPrefix(string(kv.Key), c.prefix)
	if !ok {
		return "", false
	}
	if rest == "/" {
		return "/", true
	}
	i := strings.LastIndexByte(rest, '/')
	if i < 1 || rest[i-1] != '/' || rest[0] != '/' {
		return "", false
	}
	name, ok := nameOf(rest[i+1:], kv)
	return rest[:i-1] + "/" + name, ok
}

// nameOf returns the name of a node whose key ends with this.
func nameOf(end string, kv *mvccpb.KeyValue) (string, bool) {
	i := strings.IndexByte(end, 0)
	if i < 0 {
		return end, end != ""
	}
	if len(end) < i+3 {
		return "", false
	}
	place, err := strconv.ParseUint(end[i+1:i+3], 16, 7)
	if err != nil {
		return "", false
	}
	name := end[:i]
	if name == "" {
		r, err := decode(kv)
		if err != nil || r.name == "" {
			return "", false
		}
		name = r.name
	}
	return name + fmt.Sprintf("%010d", kv.CreateRevision*places+int64(place)), true
}

// A sequence is how the key of a sequential node is found by its path.
type sequence struct {
	keys    string // the prefix of its key, and perhaps of all others of its place in the directory
	created int64  // the create revision of its key
}

// sequences returns how the node at path is found if it is a sequential one. It returns several
// ways if the prefix of the name can end with digits too.
func (c *config) sequences(path string) []sequence {
	digits := 0
	for digits < len(path) && path[len(path)-1-digits] >= '0' && path[len(path)-1-digits] <= '9' {
		digits++
	}
	var all []sequence
	dir, name := split(path)
	for n := 10; n <= min(digits, 19); n++ {
		number, err := strconv.ParseInt(path[len(path)-n:], 10, 64)
		if err != nil || n > 10 && path[len(path)-n] == '0' || number < places {
			continue
		}
		place, created := int(number%places), number/places
		all = append(all, sequence{c.nameless(dir, place), created})
		if n < len(name) {
			all = append(all, sequence{c.numbered(path[:len(path)-n], place), created})
		}
	}
	return all
}

// mostRevisions is more revisions than a service makes in a second, and longest is that many for the
// time that a transaction is under way at most.
const (
	mostRevisions = 1 << 17
	longest       = 32 * mostRevisions
)

// horizon returns a revision that the service cannot reach before it handles a transaction that is sent
// now. rev is the latest revision in the replies of the session: the lease of a session that hears nothing
// for its timeout is over.
func (s *session) horizon(rev int64) int64 {
	return rev + longest + int64(s.Timeout()/time.Second)*mostRevisions
}

// near returns the ways whose revision is at most bound, and the lowest revision of the other ways. Most names with many digits look as if they were of revisions that no service will
// reach: no node has such a number.
func near(ways []sequence, bound int64) (within []sequence, beyond int64) {
	beyond = math.MaxInt64
	for _, way := range ways {
		if way.created <= bound {
			within = append(within, way)
		} else {
			beyond = min(beyond, way.created)
		}
	}
	return within, beyond
}

// The value of a node's key is a header, and the data. The header begins with these flags. A
// compare of the value with one byte tells ephemeral and irregular nodes from the others, and it
// fails for a missing node.
//
// Earlier versions of this package read the header of a container as that of a persistent node. When they
// write the node, it becomes persistent: these versions do not expect that a node vanishes.
const (
	flagIrregular = 0x80 // the header has a delta and a birth
	flagEphemeral = 0x40
	flagNamed     = 0x02 // the name without its number comes before the data; an empty one marks a container
	flagNewParent = 0x01 // the commit that created the node also created its parent

	knownFlags = flagIrregular | flagEphemeral | flagNamed | flagNewParent
)

// mostNamed is the size of the name and the data of a new node that has its name in the value. A list of
// the children has the values; a SetData can make them longer.
const mostNamed = 256

const (
	shortHeader = 1 + 8 + 8
	longHeader  = shortHeader + 4 + 8
)

// record is a node as its key shows it.
type record struct {
	key     string
	created int64 // create revision of the key
	mod     int64
	puts    int64 // version of the key
	lease   int64

	flags        byte
	ctime, mtime int64
	delta        int32  // version of the node, less that of a key that was put as often
	birth        int64  // the commit that created the node, where that is not the create revision of the key
	name         string // of a sequential node without its number, unless the key has it
	container    bool
	data         []byte
}

// bornNow is the birth in the value of a key that replaces a node by another one of the same path,
// since its revision is not known yet.
const bornNow = -1

// errNotOurs is the error for what another program has written at the key of a node.
var errNotOurs = fmt.Errorf("%w: etcd: the value of the key was not written by this library", backend.ErrInvalid)

// decode reads a key and its value. The data is that of kv.
func decode(kv *mvccpb.KeyValue) (*record, error) {
	r := &record{key: string(kv.Key), created: kv.CreateRevision, mod: kv.ModRevision, puts: kv.Version, lease: kv.Lease}
	v := kv.Value
	if len(v) < shortHeader || v[0]&^knownFlags != 0 {
		return nil, fmt.Errorf("%w: %q", errNotOurs, kv.Key)
	}
	r.flags = v[0]
	r.ctime, r.mtime = int64(binary.BigEndian.Uint64(v[1:])), int64(binary.BigEndian.Uint64(v[9:]))
	r.data = v[shortHeader:]
	if r.flags&flagIrregular != 0 {
		if len(v) < longHeader {
			return nil, fmt.Errorf("%w: %q", errNotOurs, kv.Key)
		}
		r.delta, r.birth = int32(binary.BigEndian.Uint32(v[17:])), int64(binary.BigEndian.Uint64(v[21:]))
		r.data = v[longHeader:]
	}
	if r.flags&flagNamed != 0 {
		size := 2
		if len(r.data) >= size {
			size += int(binary.BigEndian.Uint16(r.data))
		}
		if len(r.data) < size {
			return nil, fmt.Errorf("%w: %q", errNotOurs, kv.Key)
		}
		r.name, r.data = string(r.data[2:size]), r.data[size:]
		r.container = r.name == ""
	}
	return r, nil
}

// value returns the value for the key of r.
func (r *record) value() []byte {
	v := make([]byte, 0, longHeader+2+len(r.name)+len(r.data))
	flags := r.flags &^ (flagIrregular | flagNamed)
	irregular := r.delta != 0 || r.birth != 0
	if irregular {
		flags |= flagIrregular
	}
	named := r.name != "" || r.container
	if named {
		flags |= flagNamed
	}
	v = append(v, flags)
	v = binary.BigEndian.AppendUint64(v, uint64(r.ctime))
	v = binary.BigEndian.AppendUint64(v, uint64(r.mtime))
	if irregular {
		v = binary.BigEndian.AppendUint32(v, uint32(r.delta))
		v = binary.BigEndian.AppendUint64(v, uint64(r.birth))
	}
	if named {
		v = binary.BigEndian.AppendUint16(v, uint16(len(r.name)))
		v = append(v, r.name...)
	}
	return append(v, r.data...)
}

func (r *record) regular() bool   { return r.flags&flagIrregular == 0 }
func (r *record) ephemeral() bool { return r.flags&flagEphemeral != 0 }

// czxid returns the commit that created the node.
func (r *record) czxid() int64 {
	switch r.birth {
	case 0:
		return r.created
	case bornNow:
		return r.mod
	}
	return r.birth
}

func (r *record) version() int32 { return int32(min(r.puts-1, math.MaxInt32)) + r.delta }

// newborn reports whether the latest put of the key created the node.
func (r *record) newborn() bool { return r.czxid() == r.mod }

func (r *record) stat(children, asOf int64) backend.Stat {
	return backend.Stat{
		Czxid: r.czxid(), Mzxid: r.mod, Ctime: r.ctime, Mtime: r.mtime, Version: r.version(),
		EphemeralOwner: r.lease, DataLength: int32(len(r.data)), NumChildren: int32(children), Container: r.container, AsOf: asOf,
	}
}

// checkPath is backend.CheckPath with the rule of this backend.
func checkPath(path string) error { return backend.CheckPath(path) }
