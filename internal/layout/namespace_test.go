package layout_test

import (
	"errors"
	"testing"

	"github.com/go-coord/coord/internal/layout"
)

func TestNamespace_MapsPathsBothWays(t *testing.T) {
	for _, tc := range []struct {
		ns         layout.Namespace
		path, full string
	}{
		{"", "/", "/"}, {"", "/a/b", "/a/b"}, {"/app", "/", "/app"}, {"/app", "/a", "/app/a"}, {"/app", "/app", "/app/app"}, {"/any", "/any", "/any/any"},
	} {
		fullPath := func(path string) (string, error) {
			if path == "/" {
				return "", errors.New("no recipe can be there")
			}
			return string(tc.ns) + path, nil
		}
		full, ns, err := layout.Place(fullPath, tc.path)
		if full != tc.full || ns != tc.ns || err != nil {
			t.Errorf("%s in %q: %s in %q, %v", tc.path, tc.ns, full, ns, err)
		}
		if got := tc.ns.Rel(tc.full); got != tc.path {
			t.Errorf("%s in %q is %s, want %s", tc.full, tc.ns, got, tc.path)
		}
	}
	for _, outside := range []string{"/appendix", "/", "/other/app"} {
		if got := layout.Namespace("/app").Rel(outside); got != outside {
			t.Errorf("%s becomes %s", outside, got)
		}
	}
	bad := errors.New("bad")
	if _, _, err := layout.Place(func(string) (string, error) { return "", bad }, "x"); !errors.Is(err, bad) {
		t.Errorf("error %v", err)
	}
}
