"""Frequent words of the Latin-script languages that are served, most frequent first.

They are what `latin.py` learns spelling from, so that a message of two words is judged by more than the model's guess.
Written by hand from general knowledge of the languages: function words, chat, orders and accounts, news, the names of
days and numbers. Indonesian and Malay share one list, as they share one route.
"""

from __future__ import annotations

ENGLISH = """
the of and to in a is that for it was on you with as are be this have at from by not or they we his her he
she but an had has were which their there been one all can will would if does did am when who what so said
more about out up into than them mean say its my your our do time no some could other these two may then
first any new now people only made over how also after most many must before through back years where much
way well down should because each just those between good very make world still see own men work long get
here both little under never same another know while last might us great old year off come since against go
came right used take three states himself house use during without again place american around however home
small found thought went part once general high upon school every don't got united left number course war
until always away something fact water less public put thing almost hand enough far took head yet government
system set better told nothing night end why called didn't eyes find going look asked later knew point next
program city business give group toward young days let room president side social given present several
order national second possible rather face among per form important often things looked early white john
case large big need four within felt children along saw best church ever least power development light
family interest want mind country area others although turned open god service certain kind different door
thus help sense means whole matter line week try please thanks thank hello hi hey yes okay ok sorry sure
problem question answer error account password login reset email phone card payment refund shipping delivery
delivered package track tracking cancel change update address bill invoice price cost free buy bought return
broken working doesn't can't won't isn't i'm it's that's i've you're what's there's let's show write explain
translate summarize list table code file page link send sent message text word words sentence english today
tomorrow yesterday morning evening tonight month minute hour day weather food news story name friend
according report reported officials minister police court law scientists researchers study announced party
election vote members million billion percent company market killed died injured attack fire storm north
south east west island river sea travel visit tourists hotel flight airport train ship road team game player
match won win lost season club league cup olympic players champion event championship science theory energy
computer internet technology information data research university student students teacher language culture
history century ancient empire king queen land earth moon sun space planet animals plants birds disease
virus patients hospital doctor medical health human body blood brain cells drug treatment therefore though
instead despite unless whether whose whom such like being having doing making taking coming using getting
looking trying saying running including following becoming became become began begin start started stop
stopped continue continued allow allowed require required provide provided include included known shown seen
done gone taken held kept led met paid built brought caught would've should've shall cannot already soon
perhaps maybe really quite too late near nearly above below behind beside beyond inside outside across
towards him me mr mrs dr sir lady man woman women boy girl child father mother brother sister son daughter
husband wife black red blue green yellow brown cold hot warm dry wet dark fast slow strong weak hard soft
easy difficult simple short tall wide deep rich poor clean dirty full empty happy sad angry afraid ready
able likely common popular few either neither none nobody someone anyone everyone everything anything wow
cool nice awesome lol haha yeah yep nope pls asap wanna gonna gotta kinda hope wish love hate feel seem
seems seemed appear appears believe believed remember forget understand understood learn learned teach
taught speak spoke listen heard watch watched play played walk walked drive drove eat ate drink drank sleep
slept live lived die move moved carry carried bring throw threw catch grow grew rise rose fall fell raise
raised reach reached pass passed returned remain remained expect expected decide decided agree agreed accept
accepted refuse refused suggest suggested recommend recommended explained describe described mention
mentioned discuss discussed notice noticed measure measured compare compared create created produce produced
develop developed design designed support supported protect protected attacked destroy destroyed discover
discovered invent invented receive received deliver ordered shipped charge charged check checked fix fixed
install upgraded crash crashed username website app screen button click close save delete upload download
north-east whilst thousand hundred dozen half quarter third fourth fifth sixth seventh eighth ninth tenth
five six seven eight nine ten eleven twelve twenty thirty forty fifty monday tuesday wednesday thursday
friday saturday sunday january february april june july august september october november december spring
summer autumn winter whereas throughout amongst certainly probably especially particularly generally usually
sometimes rarely recently finally eventually currently previously originally actually simply clearly highly
widely
"""

SPANISH = """
de la que el en y a los se del las un por con no una su para es al lo como más o pero sus le ha me si sin
sobre este ya entre cuando todo esta ser son dos también fue había era muy años hasta desde está mi porque
qué sólo han yo hay vez puede todos así nos ni parte tiene él uno donde bien tiempo mismo ese ahora cada
vida otro después te otros aunque esa eso hace otra gobierno tan durante siempre día tanto ella tres sí dijo
sido gran país según menos mundo año antes estado quiere mientras contra sino forma caso nada hacer general
estaba poco estos presidente mayor ante unos les algo hacia casa ellos ayer hecho primera mucho además quien
momento millones esto españa hombre están pues hoy lugar nacional trabajo otras mejor nuevo decir algunos
entonces todas días debe política cómo casi toda tal luego pasado primer medio va estas sea tenía nunca
poder aquí ver veces embargo partido personas grupo cuenta pueden tienen misma nueva cual fueron mujer
frente tras cosas fin ciudad he social manera tener sistema será historia muchos tipo cuatro dentro nuestro
punto dice ello cualquier noche aún agua parece haber situación fuera bajo grandes nuestra ejemplo acuerdo
habían usted estados hizo nadie países horas posible tarde ley importante guerra desarrollo proceso realidad
sentido lado mí tu cambio allí mano eran estar número sociedad unas centro padre gente final relación cuerpo
obra incluso través último madre mis modo problemas cinco hombres información ojos muerte nombre algunas
público mujeres siglo todavía meses mañana esos nosotros hora muchas pueblo alguna dar problema don da tú
derecho verdad unidos podría sería junto cabeza aquel cuanto tierra equipo segundo director dicho cierto
casos manos nivel podía familia largo partir falta llegar propio ministro cosa primero seguridad hemos mal
trata algún tuvo respecto semana varios real sé voz paso señor mil quienes proyecto mercado mayoría luz
claro iba éste orden español buena quiero aquella programa palabras internacional van esas segunda empresa
puesto ahí propia libro igual político persona últimos ellas total creo tengo dios solo hola gracias buenos
buenas tardes noches favor ayuda ayudar ayúdame necesito puedo puedes quisiera quieres pedido pedidos envío
enviar entrega paquete llegó llega llegado pago pagar tarjeta factura precio cuesta cuánto cuándo dónde
quién cuál reembolso devolver devolución cancelar cambiar dirección correo contraseña sesión error funciona
código archivo página mensaje texto escribe escribir explica explícame traduce traducir resume resumen lista
tabla oración palabra inglés idioma pregunta respuesta hablar hablas entiendo entender mes minuto clima
comida noticias cuento amigo amigos vale bueno malo perdón disculpa adiós informe informó informaron anunció
afirmó declaró explicó señaló indicó añadió aseguró científicos investigadores estudio policía tribunal
elecciones votos miembros ministerio ataque incendio tormenta norte sur oeste isla río mar viaje viajar
visitar turistas turismo hotel vuelo aeropuerto tren barco carretera jugador jugadores temporada liga copa
campeón ganó ganar perdió ciencia teoría energía tecnología datos investigación universidad estudiantes
alumnos profesor lengua cultura antiguo antigua imperio rey reina luna sol espacio planeta animales plantas
aves enfermedad pacientes hospital médico médicos salud humano humanos sangre cerebro células siendo estaban
estuvo tenían hicieron pudo podrían deben debería debían hubo hacen haciendo utiliza utilizar usar usan
llamado llamada conocido conocida considerado encuentra encuentran encontró comenzó empezó continuó permite
permitir permiten requiere incluye incluyen incluyendo convirtió debido siquiera ningún ninguna ninguno
ambos ambas tampoco quizás pequeño pequeña grande alto alta larga corto fácil difícil simple viejo joven
rico pobre frío caliente negro blanco rojo azul verde muchacho niño niña niños hijo hija hermano hermana
esposa marido jaja genial chévere oye mira espera espero deseo amor gusta gustaría encanta odio siento
siente parecía creer cree creía recordar olvidé olvidar aprender aprendió enseñar escuchar escuchó mirar
jugar jugó caminar comer comió beber dormir vivir vivió morir murió mover llevar llevó traer trajo tirar
crecer creció subir bajar caer cayó pasar volver volvió regresar quedar quedó esperar decidir decidió
aceptar aceptó rechazar sugerir sugirió recomendar describir describió mencionar mencionó discutir notar
medir comparar crear creó producir produjo desarrollar diseñar apoyar proteger atacar destruir destruyó
descubrir descubrió inventar recibir recibió recibido cobrar cobro cobraron revisar arreglar instalar
actualizar lento lenta usuario sitio aplicación pantalla botón abrir cerrar guardar borrar descargar cien
ciento mitad cuarto tercero quinto seis siete ocho nueve diez once doce veinte treinta cuarenta cincuenta
lunes martes miércoles jueves viernes sábado domingo enero febrero marzo abril mayo junio julio agosto
septiembre octubre noviembre diciembre primavera verano otoño invierno especialmente generalmente
normalmente frecuentemente recientemente finalmente actualmente probablemente realmente simplemente
claramente estoy estás estamos soy eres somos tienes tenemos tuve hice haces hago voy vas vamos fui fuiste
dime dame ponme puedas pueda sepa saber sabes sabía conocer conozco poner puse puso pone salir sale salió
venir viene vino nuestros nuestras vuestro vuestra suyo suya míos aquello aquellos aquellas cuyo cuya cuyos
"""

INDONESIAN_AND_MALAY = """
yang dan di itu dengan untuk tidak ini dari dalam akan pada juga saya ke karena tersebut bisa ada mereka
lebih kata tahun sudah atau saat oleh menjadi orang ia telah adalah seperti sebagai bahwa dapat para harus
namun kita dua satu masih hari hanya mengatakan kepada kami setelah melakukan lalu belum lain dia kalau
terjadi banyak menurut anda hingga tak baru beberapa ketika saja jalan sekitar secara dilakukan sementara
tapi sangat hal sehingga seorang bagi besar lagi selama antara waktu sebuah jika sampai jadi terhadap tiga
serta pun salah merupakan atas sejak membuat baik memiliki kembali selain tetapi pertama kedua memang pernah
apa mulai sama tentang bukan agar semua sedang kali kemudian hasil sejumlah juta persen sendiri katanya
demikian masalah mungkin umum setiap bulan bagian bila lainnya terus luar cukup termasuk sebelumnya bahkan
tempat perlu menggunakan memberikan rabu sedangkan kamis langsung apakah pihaknya melalui diri mencapai
minggu aku berada tinggi ingin sebelum tengah kini the tahu bersama depan selasa begitu merasa berbagai
mengenai maka jumlah masuk mengalami sering ujar kondisi akibat hubungan empat paling mendapatkan selalu
lima meminta melihat sekarang mengaku mau kerja acara menyatakan masa proses tanpa selatan sempat adanya
hidup datang senin rasa maupun seluruh mantan lama jenis segera misalnya mendapat bawah jangan meski
terlihat akhirnya jumat punya yakni terakhir kecil panjang badan jelas jauh tentu semakin tinggal kurang
mampu posisi asal sekali sesuai sebesar berat dirinya memberi pagi sabtu ternyata mencari sumber ruang
menunjukkan biasanya nama sebanyak utara berlangsung barat kemungkinan yaitu berdasarkan sebenarnya cara
utama pekan terlalu membawa kebutuhan suatu menerima penting tanggal bagaimana terutama tingkat awal sedikit
nanti pasti muncul dekat lanjut ketiga biasa dulu kesempatan ribu akhir membantu terkait sebab menyebabkan
khusus bentuk ditemukan diduga mana ya kegiatan sebagian tampil hampir bertemu usai berarti keluar pula
digunakan justru padahal menyebutkan gedung apalagi program milik teman menjalani keputusan upaya mengetahui
mempunyai berjalan menjelaskan mengambil benar lewat belakang ikut barang meningkatkan kejadian kehidupan
keterangan penggunaan masing menghadapi halo hai selamat siang sore malam terima kasih terimakasih tolong
bantu bantuan minta maaf permisi kapan berapa siapa mengapa kenapa dimana gimana aja nggak gak enggak ga
dong sih deh kok nih tuh banget udah kalo gue lu kamu kau kalian pesanan paket kirim pengiriman dikirim
bayar pembayaran kartu tagihan harga harganya murah mahal kembalikan pengembalian uang dana batal batalkan
ganti ubah alamat surel sandi akun daftar lupa rusak kesalahan galat kode berkas halaman pesan teks tulis
tuliskan jelaskan terjemahkan ringkas ringkasan bahasa inggris indonesia contoh pertanyaan jawaban jawab
bicara mengerti paham besok kemarin cuaca makanan makan minum berita cerita kawan laporan melaporkan
pemerintah presiden menteri polisi pengadilan hukum undang pemilihan partai anggota miliar negara kota
daerah wilayah provinsi pulau sungai laut gunung tanah air api perjalanan wisata wisatawan hotel penerbangan
pesawat bandara kereta kapal mobil motor tim pemain pertandingan permainan musim liga piala juara menang
kalah ilmu ilmuwan peneliti penelitian penelitiannya teori energi teknologi informasi data universitas
mahasiswa siswa guru sekolah budaya sejarah abad kuno kerajaan raja ratu matahari bumi planet hewan binatang
tumbuhan burung penyakit virus pasien rumah sakit dokter kesehatan manusia tubuh darah otak sel obat
perawatan pengobatan perang serangan tentara pasukan senjata ekonomi perusahaan pasar dibuat dikenal disebut
dianggap diketahui diperlukan dibangun dibawa diambil dimulai dijual membangun membeli menjual memakai
memulai menemukan menyebut mengumumkan mengirim menulis membaca mendengar berbicara bekerja belajar bermain
bergerak berubah berhenti berhasil terdapat terbesar terletak tersedia terkenal tertentu terdiri perubahan
perkembangan pembangunan pertumbuhan peningkatan kemampuan keamanan keadaan kekuatan pemimpin penduduk
penumpang pekerja pengguna anak ayah ibu kakak adik istri suami laki perempuan wanita pria hitam putih merah
biru hijau kuning dingin panas kering basah gelap cepat lambat kuat lemah keras mudah sulit sederhana pendek
lebar kaya miskin bersih kotor penuh kosong senang sedih marah takut siap boleh hendak ialah kerana beliau
sahaja iaitu ataupun dah nak awak encik puan bagaimanapun mahu kanak negeri syarikat seseorang manakala
walaupun semasa apabila daripada mengikut berkata sila ramai jumpa cakap tengok duit polis hospital pejabat
universiti bandar perdana isnin khamis jumaat ahad tiada kah lah nya maklumat pelbagai melancong sekurang
dijangka dipercayai dilaporkan diberi diberikan disebabkan hubungi macam haha wkwk mantap keren bagus mohon
silakan semoga harap cinta suka benci rasanya tampaknya kelihatan percaya ingat mengajar mengajarkan dengar
mendengarkan tonton menonton main jalan-jalan tidur mati meninggal tewas terluka pindah bawa dibawakan
lempar tangkap tumbuh naik turun jatuh mengangkat capai kembalilah tetap menunggu tunggu memutuskan setuju
menyetujui menolak menyarankan merekomendasikan menggambarkan membahas memperhatikan mengukur membandingkan
menciptakan menghasilkan mengembangkan merancang mendukung melindungi menyerang menghancurkan diterima
menagih ditagih periksa cek perbaiki pasang perbarui lelet situs aplikasi layar tombol klik buka tutup
simpan hapus unggah unduh ratus ribuan ratusan setengah seperempat keempat kelima enam tujuh delapan
sembilan sepuluh sebelas puluh belas januari februari maret april mei juli agustus september oktober
november desember semi gugur umumnya seringkali kadang jarang baru-baru sungguh bisakah bolehkah tolonglah
punyaku milikmu bukanlah beginilah berikut berikutnya berbeda bersifat berupa berasal berfungsi bertanggung
berharap bermaksud memperoleh memperlihatkan memperkirakan mempertimbangkan menyediakan menyimpan menyusun
menyadari menyukai mengatur mengganti mengelola mengikuti mengingat mengunjungi mengizinkan menangani
menawarkan mencakup mencoba menderita mendorong menentukan menetapkan menjaga menguji penemuan pengalaman
pengaruh penjelasan penyebab penyebaran pemeriksaan pemilik pembeli pembuatan perbedaan perhatian perjanjian
permintaan pernyataan persiapan pertemuan kecelakaan kegagalan kehilangan kekuasaan kelompok kematian
kenyataan kepala kepercayaan kerusakan kesulitan ketinggian dikirimkan dinyatakan ditetapkan diumumkan
diperbolehkan disediakan dilihat dipakai dihapus dibayar dikembalikan
"""

VIETNAMESE = """
và của là có cho không được trong một những các với đã người này để khi đến từ ở cũng như về ra vào lại
nhiều tôi thì sẽ năm đó hay phải trên sau còn nhưng rất mà việc làm theo nên tại hơn con đi thể đang bị nước
bạn hai nhà ngày nó mình chỉ anh em ông bà chị họ chúng ta mới trước cùng qua nếu vì do gì ai sao thế đâu
nào bao giờ mấy biết nói thấy muốn cần đều mọi cả số lên xuống đây kia ấy vậy rồi chưa hết luôn lúc thời
gian hôm nay mai tháng tuần phút sáng trưa chiều tối đêm xin chào cảm ơn vui lòng giúp giùm hỏi trả lời câu
đơn hàng giao vận chuyển thanh toán tiền giá hoàn đổi huỷ hủy địa tài khoản mật khẩu đăng nhập lỗi hỏng mã
tệp trang tin nhắn viết giải thích dịch tóm tắt tiếng việt ví dụ ngữ hiểu quên chậm nhanh tốt xấu đẹp lớn
nhỏ cao thấp dài ngắn cũ trẻ già nóng lạnh khó dễ đúng sai đầu cuối giữa ngoài trái bên cạnh gần xa đường
phố thành quận huyện tỉnh vùng miền bắc nam đông tây biển sông núi đảo đất trời mặt trăng lửa gió mưa bão lũ
chính phủ tổng thống bộ trưởng cảnh sát tòa án luật bầu cử đảng viên triệu tỷ phần trăm công ty thị trường
kinh chiến tranh quân đội tấn vũ khí báo cáo tuyên bố thông nghiên cứu khoa học lý thuyết năng lượng máy
tính kỹ thuật nghệ liệu đại sinh giáo lớp văn hóa lịch sử kỷ cổ đế vua hoàng động vật thực cây chim cá bệnh
nhân viện bác sĩ sức khỏe cơ máu não tế bào thuốc điều trị du khách sạn chuyến bay sân tàu xe cầu thủ trận
đấu mùa vô địch thắng thua chơi sự cuộc cái chiếc bức quyển loại nhóm dạng hình ảnh bởi vẫn bằng giống khác
nhau nhất hầu mỗi từng vài ít nữa thêm ngay lập tức thường xuyên đôi lẽ chắc chắn tuy nhiên mặc dù bắt kết
thúc tiếp tục trở xảy tìm gọi đưa đặt lấy mua bán mở đóng đọc nghe nhìn xem ăn uống ngủ sống chết cha mẹ vợ
chồng trai gái bé thầy cô nghĩ nhớ yêu ghét sợ giận buồn dụng phát triển hoạt quan trọng vấn đề nguyên quả
tăng giảm mạnh yếu chung riêng toàn quốc gia hội dân tộc ngôn nghiệp hành quyền lực đối ý kiến quyết định
khả tự an tượng ạ nhé nha nhỉ ơi à ừ vâng dạ ờ đấy thôi cứ hãy đừng chớ nhờ cậu tớ mày tao dì tụi bọn đứa
thật quá lắm hơi khá cực kỳ siêu ngon đắt rẻ miễn phí gấp chờ đợi gửi nhận kiểm tra sửa cài cập nhật ứng màn
nút bấm lưu xóa tải nghìn ngàn mươi mười ba bốn sáu bảy tám chín thứ chủ xuân hè thu gồm tổ chức cộng đồng
khu vực trung tâm phương pháp phản chứng minh hiện khẳng nghị cung cấp xây dựng bảo vệ hỗ trợ tạo tham gặp
xuất sản phẩm đạt giữ chạy đứng ngồi nằm rơi nổ cháy cắt nối hướng dẫn truyền chí mạng
"""

WORDS: dict[str, str] = {"en": ENGLISH, "es": SPANISH, "id": INDONESIAN_AND_MALAY, "vi": VIETNAMESE}
