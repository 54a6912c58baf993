//go:build linux

package main

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/zkproxy"
)

// onEtcd starts a server of etcd in this process, which ends with the test.
func onEtcd(t *testing.T) *servers {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	local := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.ListenPeerUrls, cfg.AdvertiseClientUrls, cfg.AdvertisePeerUrls = local, local, local, local
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.TickMs, cfg.ElectionMs = 20, 200
	cfg.UnsafeNoFsync = true
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	addrs := []string{e.Clients[0].Addr().String()}
	return &servers{
		"etcd", addrs, zkproxy.NewRaw, etcd.New(addrs, &etcd.Options{SessionTimeout: 8 * time.Second}),
		func(ctx context.Context, session int64) error {
			_, err := e.Server.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: session})
			return err
		},
	}
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
