package zookeeper

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-coord/coord/backend"
)

func TestPathsKeepTheRulesOfZooKeeper(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		path   string
		reason string // part of the error; empty for a good path
	}{
		{"/", ""},
		{"/zookeeper2", ""},
		{"/a/zookeeper", ""},
		{"/Zookeeper", ""},
		{"/ä/日本/\uf900/\uffe8", ""},
		{"/zookeeper", "is reserved for ZooKeeper"},
		{"/zookeeper/quota/x", "is reserved for ZooKeeper"},
		{"/\ufffd", "character U+FFFD: ZooKeeper refuses U+FFF0 to U+FFFF"},
		{"/\ufffc/b", "character U+FFFC: ZooKeeper refuses U+FFF0 to U+FFFF"},
		{"/\U0001f600", "character U+1F600: ZooKeeper refuses everything beyond U+FFFF"},
		{"/a/\U00020000", "character U+20000: ZooKeeper refuses everything beyond U+FFFF"},
		{"/a//b", "empty segment"},
		{"/\uffff", "noncharacter"},
		{"/a\xef", "not UTF-8"},
	} {
		err := checkPath(tt.path)
		var e *backend.Error
		switch {
		case tt.reason == "" && err != nil:
			t.Errorf("%q: %v", tt.path, err)
		case tt.reason == "":
		case !errors.Is(err, backend.ErrBadPath) || !errors.As(err, &e) || e.Path != tt.path || e.Op != "check" || !strings.Contains(err.Error(), tt.reason):
			t.Errorf("%q: got %v, want an error about %q", tt.path, err, tt.reason)
		}
	}
}
