package etcd

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

func TestKeysAreThoseOfTheirPaths(t *testing.T) {
	c := &config{prefix: "p"}
	for path, key := range map[string]string{"/": "p/", "/a": "p//a", "/a/b": "p/a//b", "/a/b/c": "p/a/b//c", "/0000000001": "p//0000000001"} {
		if got := c.literalKey(path); got != key {
			t.Errorf("the key of %s is %q, want %q", path, got, key)
		}
		if got, ok := c.pathOf(&mvccpb.KeyValue{Key: []byte(key), CreateRevision: 77}); !ok || got != path {
			t.Errorf("the path of %q is %s, %v, want %s", key, got, ok, path)
		}
	}
	for _, foreign := range []string{"", "q//a", "p", "px//a", "p/a", "p//", "p//n-\x00", "p//n-\x00zzu", "p//\x0005u", ":session/1"} {
		if got, ok := c.pathOf(&mvccpb.KeyValue{Key: []byte(foreign), CreateRevision: 1}); ok {
			t.Errorf("%q is the key of %s", foreign, got)
		}
	}
	// The ranges of the children and of everything below a node.
	within := func(key, prefix string) bool { return prefix <= key && key < after(prefix) }
	for _, test := range []struct {
		key         string
		kids, below bool // of /a
	}{
		{"p//a", false, false}, {"p/a//b", true, true}, {"p/a//b\x0005u", true, true}, {"p/a/b//c", false, true},
		{"p//ab", false, false}, {"p/ab//c", false, false}, {"p//a0", false, false}, {"p:session/1", false, false},
	} {
		if within(test.key, c.kids("/a")) != test.kids || within(test.key, c.below("/a")) != test.below {
			t.Errorf("%q: want among the children %v, below %v", test.key, test.kids, test.below)
		}
	}
	if got := after("a\xff"); got != "b" {
		t.Errorf("after a\\xff is %q", got)
	}
}

func TestSequentialNodesAreFoundByTheirNumbers(t *testing.T) {
	c := &config{prefix: "p"}
	for _, prefix := range []string{"/a/n-", "/n-1", "/x/00", "/0"} {
		for _, created := range []int64{2, 77, 78_125_000, 1 << 40} {
			for _, place := range []int{0, 5, places - 1} {
				dir, name := split(prefix)
				for _, kv := range []*mvccpb.KeyValue{
					{Key: []byte(c.numbered(prefix, place) + "end"), CreateRevision: created, Value: (&record{}).value()},
					{Key: []byte(c.nameless(dir, place) + "end"), CreateRevision: created, Value: (&record{name: name}).value()},
				} {
					path, ok := c.pathOf(kv)
					if want := fmt.Sprintf("%s%010d", prefix, created*places+int64(place)); !ok || path != want {
						t.Fatalf("%q is the key of %s, %v, want %s", kv.Key, path, ok, want)
					}
					key := string(kv.Key)
					found := slices.ContainsFunc(c.sequences(path), func(q sequence) bool {
						return q.created == created && q.keys <= key && key < after(q.keys)
					})
					if !found {
						t.Errorf("%s with the key %q, created in %d, is not found by %+v", path, key, created, c.sequences(path))
					}
				}
			}
		}
	}
	for _, path := range []string{"/a", "/n-123456789", "/n-0000000000", "/n-0000000127", "/n-99999999999999999999x"} {
		if got := c.sequences(path); len(got) > 0 {
			t.Errorf("%s can be the sequential node %+v", path, got)
		}
	}
}

func TestHeadersComeBack(t *testing.T) {
	for _, r := range []record{
		{ctime: 1, mtime: 2, data: []byte("v")},
		{flags: flagEphemeral | flagNewParent, ctime: 1 << 40, data: []byte{}},
		{delta: -3, birth: bornNow, data: []byte{0xff}},
		{delta: 7, birth: 12, flags: flagEphemeral, data: nil},
		{name: "n-", flags: flagEphemeral, data: []byte("v")},
		{name: "n-", delta: 7, birth: 12},
		{container: true, data: []byte("v")},
		{container: true, delta: 7, birth: 12},
	} {
		kv := &mvccpb.KeyValue{Key: []byte("k"), Value: r.value(), CreateRevision: 10, ModRevision: 20, Version: 5}
		got, err := decode(kv)
		if err != nil {
			t.Fatal(err)
		}
		if got.ctime != r.ctime || got.mtime != r.mtime || got.delta != r.delta || got.birth != r.birth || got.name != r.name || got.container != r.container || !bytes.Equal(got.data, r.data) || got.ephemeral() != r.ephemeral() {
			t.Errorf("%+v came back as %+v", r, got)
		}
		if irregular := r.delta != 0 || r.birth != 0; got.regular() == irregular {
			t.Errorf("%+v is regular: %v", r, got.regular())
		}
		if got.version() != 4+r.delta {
			t.Errorf("version %d of %+v", got.version(), r)
		}
	}
	for _, v := range [][]byte{nil, []byte("x"), bytes.Repeat([]byte{0x20}, shortHeader), append([]byte{flagIrregular}, make([]byte, shortHeader)...), append([]byte{flagNamed}, make([]byte, shortHeader-1)...), (&record{name: "n-"}).value()[:shortHeader+3]} {
		if _, err := decode(&mvccpb.KeyValue{Key: []byte("k"), Value: v}); err == nil {
			t.Errorf("%q is the value of a node", v)
		}
	}
}

func TestVersion_OfServersWithOrderedProgress(t *testing.T) {
	for version, want := range map[string]bool{
		"3.4.23": false, "3.4.24": false, "3.4.25": true, "3.4.31": true, "3.5.7": false, "3.5.8": true, "3.5.21": true,
		"3.6.0": true, "3.6.0-rc.1": true, "3.7.3": true, "4.0.0": true, "3.3.27": false, "2.3.8": false, "": false, "x": false,
	} {
		if isSince(version, 25, 8) != want {
			t.Errorf("%q: %v, want %v", version, !want, want)
		}
	}
}
