package backend_test

import (
	"errors"
	"path"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/go-coord/coord/backend"
)

func TestCheckPathAcceptsGoodPathsAndRefusesBadOnes(t *testing.T) {
	for _, tt := range []struct {
		path   string
		reason string // part of the error; empty for a good path
	}{
		{"/", ""},
		{"/a", ""},
		{"/a/b/c", ""},
		{"/a.b", ""},
		{"/...", ""},
		{"/.a/..b", ""},
		{"/ ", ""},
		{"/ä/日本", ""},
		{"/zookeeper/quota", ""},
		{"/\ufffd", ""},
		{"/a/\U0001f600/\U00020000", ""},
		{"/" + strings.Repeat("x", 10_000), ""},
		{"", "empty"},
		{"a", "not absolute"},
		{"a/b", "not absolute"},
		{" /a", "not absolute"},
		{"//", "empty segment"},
		{"/a/", "empty segment"},
		{"/a//b", "empty segment"},
		{"//a", "empty segment"},
		{"/.", "dot segment"},
		{"/..", "dot segment"},
		{"/a/./b", "dot segment"},
		{"/a/../b", "dot segment"},
		{"/a\x00", "control character U+0000"},
		{"/a\n/b", "control character U+000A"},
		{"/\x1f", "control character U+001F"},
		{"/\x7f", "control character U+007F"},
		{"/a\u0085", "control character U+0085"},
		{"/\xff", "not UTF-8"},
		{"/a\xed\xa0\x80", "not UTF-8"}, // a surrogate
		{"/a\xc3", "not UTF-8"},
		{"/a\u200b", "invisible"},
		{"/a\ufeff", "invisible"},
		{"/a\u202e", "invisible or bidirectional"},
		{"/a\u2066b", "invisible or bidirectional"},
		{"/a\u2028b", "invisible"},
		{"/a\ufe0f", "invisible"},
		{"/a\u034fb", "invisible"},
		{"/a\u3164", "invisible"},
		{"/\u115f", "invisible"},
		{"/a\u180b", "invisible"},
		{"/\ue000", "private-use character U+E000"},
		{"/\uf8ff", "private-use"},
		{"/\U000f0000", "private-use"},
		{"/\ufdd0", "U+FDD0 is a noncharacter"},
		{"/\uffff", "U+FFFF is a noncharacter"},
		{"/a\U0001fffe", "U+1FFFE is a noncharacter"},
	} {
		err := backend.CheckPath(tt.path)
		if tt.reason == "" {
			if err != nil {
				t.Errorf("%q: %v", tt.path, err)
			}
			continue
		}
		var e *backend.Error
		if !errors.Is(err, backend.ErrBadPath) || !errors.As(err, &e) || e.Path != tt.path || !strings.Contains(err.Error(), tt.reason) {
			t.Errorf("%q: got %v, want an error about %q", tt.path, err, tt.reason)
		}
	}
}

// FuzzCheckPath compares CheckPath with the rules written another way, and checks that good
// paths can be joined.
func FuzzCheckPath(f *testing.F) {
	for _, p := range []string{"/", "/a/b", "", "a", "/a/", "/..", "/a\x00", "/\u202e", "/ä\xc3", "/zookeeper", "/\U0001f600"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if err := backend.CheckPath(p); err != nil {
			if !errors.Is(err, backend.ErrBadPath) {
				t.Fatalf("%q: %v", p, err)
			}
			for _, r := range err.Error() {
				if !unicode.IsPrint(r) {
					t.Fatalf("%q: the error shows %U", p, r)
				}
			}
			return
		}
		if !utf8.ValidString(p) || p[0] != '/' || path.Clean(p) != p {
			t.Fatalf("%q is good", p)
		}
		for _, r := range p {
			if unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs, unicode.Zl, unicode.Zp) || r&0xfffe == 0xfffe {
				t.Fatalf("%q with %U is good", p, r)
			}
		}
		if p != "/" {
			if parent := path.Dir(p); backend.CheckPath(parent) != nil {
				t.Fatalf("%q is good, its parent is not", p)
			}
			if err := backend.CheckPath(p + "/x-0000000001"); err != nil {
				t.Fatalf("%q is good, its child is not: %v", p, err)
			}
			if backend.CheckPath(p+"/") == nil || backend.CheckPath(p[1:]) == nil && p[1] != '/' {
				t.Fatalf("%q and a malformed variant of it are both good", p)
			}
		}
	})
}
