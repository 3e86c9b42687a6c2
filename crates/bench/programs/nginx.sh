# needs: nginx ab /etc/nginx /usr/lib/nginx /var/lib/nginx /usr/share/nginx
prepare() {
    mkdir -p /tmp/www /var/log/nginx /var/lib/nginx; head -c 16384 /dev/zero >/tmp/www/page
    echo 'daemon off; master_process on; worker_processes 4; user root; pid /tmp/nginx.pid; error_log /dev/null;
          events {} http { access_log off; server { listen 127.0.0.1:80; root /tmp/www; } }' >/tmp/nginx.conf
}
score() {
    under $ON_OTHER_CPUS nginx -c /tmp/nginx.conf 2>/dev/null &
    within 60 listens 80
    $ON_LAST_CPU ab -q -k -c 4 -t "$SECONDS_LONG" -n 10000000 http://127.0.0.1/page 2>/dev/null |
        awk '/^Requests per second/ { print $4 }'
    kill -QUIT "$(cat /tmp/nginx.pid)"; wait
}
