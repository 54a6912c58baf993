//go:build linux

package main

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/backend/etcd/etcdtest"
	"github.com/go-coord/coord/internal/zkproxy"
)

// onEtcd starts a server of etcd in this process, which ends with the test.
func onEtcd(t *testing.T) *servers { return onEtcdWith(t, 0) }

// onEtcdWith is onEtcd with a quota of the database; zero means the default.
func onEtcdWith(t *testing.T, quota int64) *servers {
	t.Helper()
	e := etcdtest.Start(t, &etcdtest.Options{Configure: func(cfg *embed.Config) { cfg.QuotaBackendBytes = quota }})
	addrs := []string{e.Addr()}
	return &servers{"etcd", addrs, zkproxy.NewRaw, etcd.New(addrs, &etcd.Options{SessionTimeout: 8 * time.Second}), e.Expire}
}

// TestAUserAndAPrefixOfEtcd: the user comes from the environment, and the password is never
// printed. A prefix has a tree of its own.
func TestAUserAndAPrefixOfEtcd(t *testing.T) {
	v := onEtcd(t)
	cc, err := grpc.NewClient("passthrough:///"+v.addrs[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	auth, ctx := pb.NewAuthClient(cc), t.Context()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(auth.RoleAdd(ctx, &pb.AuthRoleAddRequest{Name: "root"}))
	must(auth.RoleAdd(ctx, &pb.AuthRoleAddRequest{Name: "team"}))
	must(auth.RoleGrantPermission(ctx, &pb.AuthRoleGrantPermissionRequest{Name: "team",
		Perm: &authpb.Permission{PermType: authpb.READWRITE, Key: []byte("team"), RangeEnd: []byte("tean")}}))
	for name, role := range map[string]string{"root": "root", "me": "team"} {
		must(auth.UserAdd(ctx, &pb.AuthUserAddRequest{Name: name, Password: "the password"}))
		must(auth.UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: name, Role: role}))
	}
	must(auth.AuthEnable(ctx, &pb.AuthEnableRequest{}))
	ctl := func(args ...string) (int, string, string) {
		t.Helper()
		return inProcess(t, "", append([]string{"-backend", "etcd", "-servers", v.addrs[0]}, args...)...)
	}
	t.Setenv("COORD_USER", "me:the password")
	if status, _, text := ctl("-prefix", "team", "queue", "put", "/q", "x"); status != 0 {
		t.Fatalf("put: status %d: %s", status, text)
	}
	if status, out, text := ctl("-prefix", "team", "-v", "inspect", "/q"); status != 0 || !strings.Contains(out, "queue: 1 item") || strings.Contains(out+text, "password") {
		t.Errorf("inspect: status %d: %s%s", status, out, text)
	}
	if status, out, text := ctl("-prefix", "team-b", "queue", "len", "/q"); status != 0 || out != "0\n" {
		t.Errorf("another prefix: status %d: %s%s", status, out, text)
	}
	if status, out, text := ctl("-prefix", "team", "check", "/q"); status != 0 || !strings.Contains(out, "ok      server") {
		t.Errorf("check: status %d: %s%s", status, out, text)
	}
	if status, out, text := ctl("inspect", "/q"); status != exitFailed || !strings.Contains(text, "permission") {
		t.Errorf("a prefix that is not the user's: status %d: %s%s", status, out, text)
	}
	t.Setenv("COORD_USER", "")
	if status, out, text := ctl("-prefix", "team", "inspect", "/q"); status != exitFailed || !strings.Contains(text, "permission") {
		t.Errorf("without a user: status %d: %s%s", status, out, text)
	}
}

// A queue fills the database. Coordctl deletes, although it can open no session with a lease, and says why it cannot write.
func TestCoordctl_DeletesOnAFullService(t *testing.T) {
	t.Parallel()
	v := onEtcdWith(t, 6<<20)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	c, err := coord.Open(ctx, v.service, nil)
	must(err)
	_, err = coord.NewValue[string](c, "/v", nil).Set(ctx, "x")
	must(err)
	must(coord.NewBarrier(c, "/bar", nil).Set(ctx))
	old, err := coord.Open(ctx, etcd.New(v.addrs, &etcd.Options{Without: backend.Containers}), nil)
	must(err)
	h, err := coord.NewMutex(old, "/shop/lock", nil).Lock(ctx)
	must(err)
	must(h.Release())
	must(old.Close())
	mail := coord.NewQueue(c, "/mail", &coord.QueueOptions[[]byte]{Codec: coord.Bytes(), MaxAttempts: 1})
	for range 2 {
		_, err = mail.Put(ctx, []byte("letter"))
		must(err)
		item, err := mail.Take(ctx)
		must(err)
		must(item.Nack(0))
	}
	_, err = mail.PutAll(ctx, []byte("one"), []byte("two"))
	must(err)
	_, err = coord.NewMutex(c, "/held", nil).Lock(ctx)
	must(err)
	q := coord.NewQueue(c, "/q", &coord.QueueOptions[[]byte]{Codec: coord.Bytes()})
	var ids []string
	for size := 100_000; size > 0; size /= 10 {
		for err = nil; err == nil; {
			var id string
			if id, err = q.Put(ctx, make([]byte, size)); err == nil {
				ids = append(ids, id)
			}
		}
		if !errors.Is(err, coord.ErrNoSpace) {
			t.Fatal(err)
		}
	}
	defer c.Close() // its open session keeps the lock
	for _, tc := range []struct {
		args   string
		status int
		out    string // on either output
	}{
		{"queue put /q x", exitFailed, "no space"},
		{"lock /new -- true", exitFailed, "no space"},
		{"check --read-only", exitNo, "ALARM NOSPACE"},
		{"queue take /mail", exitFailed, "no space"},   // its claim is a node
		{"revoke /held --yes", exitFailed, "no space"}, // the request is data
		{"value set /v y", exitFailed, "no space"},
		{"counter add /n 1", exitFailed, "no space"},
		{"elect /new -- true", exitFailed, "no space"},
		{"queue redrive /mail --all --yes", exitFailed, "no space"},
		{"tree /", 0, "held"},
		{"inspect /held", 0, "mutex"},
		{"queue stats /mail", 0, "ready 2\nclaimed 0\ndelayed 0\ndead 2\n"},
		{"queue dead /mail", 0, "failed"},
		{"queue pop /mail", 0, "one"},
		{"queue purge /mail/dead --yes", 0, "2\n"},
		{"queue purge /mail --yes", 0, "1\n"},
		{"queue stats /mail", 0, "ready 0\nclaimed 0\ndelayed 0\ndead 0\n"},
		{"value get /v", 0, "x"},
		{"queue remove /q --yes " + ids[0], 0, ids[0]},
		{"value delete /v --yes", 0, ""},
		{"barrier remove /bar --yes", 0, ""},
		{"prune --yes", 0, "/shop/lock"},
		{"queue purge /q --yes", 0, strconv.Itoa(len(ids)-1) + "\n"},
		{"queue len /q", 0, "0\n"},
		{"value get /v", exitNo, "not found"},
		{"barrier status /bar", exitNo, "not set"},
		{"prune --yes", 0, ""},
	} {
		status, out, errs := inProcess(t, "", append([]string{"-backend", "etcd", "-servers", v.addrs[0], "-wait", "2m"}, strings.Fields(tc.args)...)...)
		if status != tc.status || !strings.Contains(out+errs, tc.out) {
			t.Errorf("%s: status %d, want %d: %s%s", tc.args, status, tc.status, out, errs)
		}
	}
}
