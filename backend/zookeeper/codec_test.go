package zookeeper

import (
	"bytes"
	hexadecimal "encoding/hex"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
	"github.com/go-zookeeper/zk"
)

// quiet is a logger for the zk client.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// The zk client is another implementation of the protocol. Both encode each request to the
// same bytes, but for its xid.
func TestRequestsAreThoseOfTheZKClient(t *testing.T) {
	t.Parallel()
	frames := make(chan []byte, 1)
	addr := startServer(t, func(conn net.Conn) {
		welcome(conn, 100_000)
		for {
			r, err := nextRequest(conn)
			if err != nil {
				return
			}
			if op := int32At(r, 4); op != opPing && op != opClose {
				frames <- framed(r)
			}
			// A refusal leaves no watch. After it has connected, the zk client sends the watches that it has
			// by then, once, beside the first replies.
			conn.Write(framed(reply(int32At(r, 0), -102)))
		}
	})
	c, events, err := zk.Connect([]string{addr}, 100*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		c.Close()
		for range events {
		}
	}()
	const path, version = "/dir/日本-n", 1<<31 - 1
	data := bytes.Repeat([]byte("data\x00\xff"), 500)
	two := []zk.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}, {Perms: 5, Scheme: "digest", ID: "user:hash"}}
	own := encodeACL([]ACL{{"world", "anyone", PermAll}, {"digest", "user:hash", PermRead | PermCreate}})
	shared := encodeACL([]ACL{{"auth", "", PermAll}})
	aclOf := func(isShared bool) acl {
		if isShared {
			return shared
		}
		return own
	}
	commit := func(ops ...backend.Op) []byte { return encodeCommit(nil, ops, appendSteps(nil, ops), aclOf) }
	inShared := func(op backend.Op) backend.Op {
		op.Shared = true
		return op
	}
	create := func(flags int32) *zk.CreateRequest {
		return &zk.CreateRequest{Path: path, Data: data, Acl: two, Flags: flags}
	}
	for name, test := range map[string]struct {
		theirs func()
		ours   []byte
	}{
		"get":                {func() { c.Get(path) }, encodeRead(nil, opGetData, path, false)},
		"get and watch":      {func() { c.GetW(path) }, encodeRead(nil, opGetData, path, true)},
		"exists":             {func() { c.Exists(path) }, encodeRead(nil, opExists, path, false)},
		"exists and watch":   {func() { c.ExistsW(path) }, encodeRead(nil, opExists, path, true)},
		"children":           {func() { c.Children("/") }, encodeRead(nil, opChildren, "/", false)},
		"children and watch": {func() { c.ChildrenW(path) }, encodeRead(nil, opChildren, path, true)},
		"sync":               {func() { c.Sync(path) }, encodeSync(nil, path)},
		"create":             {func() { c.Create(path, data, 0, two) }, commit(backend.Create(path, data, backend.Persistent))},
		"create ephemeral":   {func() { c.Create(path, data, zk.FlagEphemeral, two) }, commit(backend.Create(path, data, backend.Ephemeral))},
		"create sequential":  {func() { c.Create(path, data, zk.FlagSequence, two) }, commit(backend.Create(path, data, backend.PersistentSequential))},
		"create both": {func() { c.Create(path, data, zk.FlagEphemeralSequential, two) },
			commit(backend.Create(path, data, backend.EphemeralSequential))},
		"create a container": {func() { c.CreateContainer(path, data, zk.FlagContainer, two) }, commit(backend.Create(path, data, backend.Container))},
		"create in a shared directory, without data": {func() { c.Create(path, []byte{}, 0, zk.AuthACL(zk.PermAll)) },
			commit(inShared(backend.Create(path, nil, backend.Persistent)))},
		"set":            {func() { c.Set(path, data, -1) }, commit(backend.SetData(path, data, backend.AnyVersion))},
		"set to nothing": {func() { c.Set(path, []byte{}, version) }, commit(backend.SetData(path, nil, version))},
		"delete":         {func() { c.Delete(path, 7) }, commit(backend.Delete(path, 7))},
		"check":          {func() { c.Multi(&zk.CheckVersionRequest{Path: path, Version: 3}) }, commit(backend.Check(path, 3))},
		"multi": {func() {
			c.Multi(create(zk.FlagSequence), &zk.SetDataRequest{Path: "/", Data: data, Version: 1},
				&zk.DeleteRequest{Path: path, Version: -1}, &zk.CheckVersionRequest{Path: path, Version: version}, create(0))
		}, commit(backend.Create(path, data, backend.PersistentSequential), backend.SetData("/", data, 1),
			backend.Delete(path, -1), backend.Check(path, version), backend.Create(path, data, backend.Persistent))},
		"absent, whatever else the operation holds": {func() {
			c.Multi(&zk.CheckVersionRequest{Path: path, Version: 3}, &zk.CreateRequest{Path: "/a", Data: []byte{}, Acl: two}, &zk.DeleteRequest{Path: "/a", Version: 0})
		}, commit(backend.Check(path, 3), backend.Op{Kind: backend.OpAbsent, Path: "/a", Data: data, Mode: backend.Ephemeral, Version: 9, Shared: true})},
		"absent alone": {func() {
			c.Multi(&zk.CreateRequest{Path: "/a", Data: []byte{}, Acl: two}, &zk.DeleteRequest{Path: "/a", Version: 0})
		}, commit(backend.Absent("/a"))},
		"carry": {func() { c.Multi(create(zk.FlagSequence), &zk.SetDataRequest{Path: "/", Data: data, Version: -1}) },
			commit(backend.Create(path, data, backend.PersistentSequential), backend.Carry("/", data))},
		"carry alone": {func() { c.Set(path, data, -1) }, commit(backend.Carry(path, data))},
		"auth":        {func() { c.AddAuth("digest", []byte("user:secret")) }, encodeAuth("user:secret")},
	} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			test.theirs()
		}()
		want := <-frames
		<-done
		ours := bytes.Clone(test.ours)
		setXid(ours, 0)
		setXid(want, 0)
		if !bytes.Equal(ours, want) {
			t.Errorf("%s:\n ours  %x\ntheirs %x", name, ours, want)
		}
		// The memory of an earlier request is used again.
		if again := encodeRead(test.ours, opGetData, "/a", true); !bytes.Equal(again, encodeRead(nil, opGetData, "/a", true)) {
			t.Errorf("%s: the next request is %x", name, again)
		}
	}
}

// The zk client does not know these requests. The bytes are those of ZooKeeper's own client.
func TestRequestsThatTheZKClientDoesNotKnow(t *testing.T) {
	for name, test := range map[string]struct {
		got  []byte
		want string // length, xid, opcode; then the fields
	}{
		"addWatch":      {encodeAddWatch(nil, "/a", 1), "00000012" + "00000000" + "0000006a" + "00000002" + "2f61" + "00000001"},
		"removeWatches": {encodeRemoveWatches(nil, "/a", 3), "00000012" + "00000000" + "00000012" + "00000002" + "2f61" + "00000003"},
		"multiRead": {encodeMultiRead(nil, []backend.Read{{Path: "/a"}, {Path: "/b", Children: true}}), "00000031" + "00000000" + "00000016" +
			"00000004" + "00" + "ffffffff" + "00000002" + "2f61" + "00" +
			"00000008" + "00" + "ffffffff" + "00000002" + "2f62" + "00" +
			"ffffffff" + "01" + "ffffffff"},
	} {
		if got := hexadecimal.EncodeToString(test.got); got != test.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, test.want)
		}
	}
}

// The frame says that it is long, and 10 bytes of it arrive.
func TestALengthThatLiesTakesLittleMemory(t *testing.T) {
	for _, test := range []struct{ says, there int }{{maxFrame - replySize, 10}, {maxFrame - replySize, 3 << 20}, {5 << 20, 5 << 20}} {
		ours, theirs := net.Pipe()
		c := newGuardConn(new(session), contact.Target{}, ours, ours, time.Time{})
		sent := strings.Repeat("0123456789", test.there/10+1)[:test.there]
		go func() {
			defer theirs.Close()
			io.WriteString(theirs, sent)
		}()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		body, err := c.body(test.says, nil)
		runtime.ReadMemStats(&after)
		if whole := test.says == test.there; whole && string(body) != sent || whole != (err == nil) {
			t.Errorf("%d of %d bytes: %d, %v", test.there, test.says, len(body), err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > uint64(6*test.there+4*trustedSize) {
			t.Errorf("%d of %d bytes took %d bytes of memory", test.there, test.says, took)
		}
		ours.Close()
	}
}
