"""Who writes these Han characters: simplified Chinese, traditional Chinese, or Japanese without kana."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Simplified and traditional form in turn, split by which of the two Japanese also uses. A form that is ordinary in
# both Chinese scripts (后, 里, 台, 云, 余, 面) proves nothing and is in no list.
_JAPANESE_USES_NEITHER: Final = (
    "这這们們说說对對发發么麼吗嗎边邊从從两兩关關气氣实實变變战戰经經单單传傳应應读讀译譯图圖团團专專转轉"
    "齐齊齿齒龟龜检檢验驗险險剑劍总總续續继繼绘繪营營荣榮劳勞处處价價卖賣乐樂药藥觉覺举舉铁鐵钱錢恶惡亚亞"
    "压壓厅廳听聽县縣显顯济濟泽澤择擇释釋驿驛带帶归歸弹彈脑腦恼惱稳穩隐隱权權劝勸欢歡观觀艺藝戏戲坏壞怀懷"
    "废廢满滿赞贊鸡雞净淨摄攝晓曉烧燒样樣盐鹽证證绝絕锐銳阅閱绿綠户戶产產颜顏圆圓围圍灵靈龄齡滨濱轻輕迟遲"
    "递遞严嚴乡鄉众眾儿兒兽獸击擊吴吳垒壘岁歲摇搖杂雜泪淚缘緣览覽赖賴辩辯驱驅骚騷奖獎历歷萤螢猎獵泷瀧据據"
    "摆擺脏髒钻鑽嘱囑妈媽吓嚇帮幫够夠俩倆厕廁赶趕赢贏赚賺谎謊闹鬧爷爺码碼办辦娱娛闲閒馈饋邻鄰"
)
_JAPANESE_USES_TRADITIONAL: Final = (
    "东東车車时時间間语語电電长長门門问問马馬鱼魚鸟鳥见見贝貝页頁风風飞飛书書话話请請谢謝认認识識记記许許"
    "论論讲講设設访訪评評词詞试試诗詩详詳误誤课課调調谈談谋謀议議计計订訂训訓讯訊讨討诉訴诊診贵貴买買贸貿"
    "费費资資赏賞质質购購货貨贩販贫貧责責败敗财財员員园園场場阳陽阴陰队隊阶階际際陆陸陈陳难難雾霧项項顺順"
    "须須预預领領题題额額类類颗顆饭飯饮飲骑騎驾駕鲜鮮鸭鴨叶葉树樹桥橋机機极極构構标標汉漢汤湯沟溝浓濃测測"
    "渔漁灭滅炼煉热熱爱愛犹猶狱獄现現环環异異疗療盖蓋盘盤监監确確础礎种種积積穷窮笔筆简簡节節纪紀约約红紅"
    "纯純纸紙级級线線组組细細织織终終结結给給统統维維网網罗羅罚罰职職肃肅胜勝苏蘇获獲补補袭襲规規视視负負"
    "贡貢轮輪软軟载載较較辆輛输輸达達过過运運进進远遠违違连連适適选選遗遺邮郵钢鋼钟鐘铃鈴银銀链鏈销銷锁鎖"
    "错錯镇鎮镜鏡闭閉闻聞个個为為还還业業丽麗习習亲親亿億仅僅仓倉仪儀优優伞傘伟偉伤傷侧側侦偵债債倾傾储儲"
    "兰蘭兴興养養决決况況冻凍准準减減划劃则則刚剛创創别別剧劇务務动動势勢华華协協卫衛叹嘆响響喷噴圣聖块塊"
    "坚堅坛壇备備夺奪奋奮妇婦孙孫宁寧审審宪憲寻尋导導层層岛島币幣师師帅帥帐帳库庫庙廟张張强強忆憶忧憂态態"
    "恳懇惩懲惯慣愤憤愿願扫掃扬揚护護报報拟擬挥揮损損换換敌敵无無暂暫术術杀殺枪槍梦夢毕畢汇匯润潤渐漸灾災"
    "烟煙狮獅画畫畅暢疯瘋矿礦砖磚祸禍离離竞競笼籠筑築紧緊练練络絡绩績绪緒绵綿综綜缓緩编編缝縫缩縮罢罷肠腸"
    "肤膚胀脹胁脅胶膠舰艦荡蕩莲蓮蓝藍讼訟诚誠诞誕诱誘诸諸诺諾谦謙谨謹贪貪贯貫贺賀赔賠轨軌辈輩辉輝辑輯迁遷"
    "迹跡逻邏针針钓釣铜銅铅鉛锋鋒锦錦闪閃阵陣韩韓顶頂顿頓饥飢饰飾饱飽驻駐骗騙鸣鳴宠寵让讓义義庆慶联聯荐薦"
    "虑慮虽雖脸臉艰艱频頻顾顧宾賓骂罵饿餓键鍵锅鍋饼餅馆館谊誼谁誰该該"
)
_JAPANESE_USES_SIMPLIFIED: Final = (
    "国國学學会會来來当當点點声聲体體党黨参參称稱宝寶湿濕浅淺滞滯随隨静靜争爭脱脫税稅悦悅黄黃横橫医醫号號"
    "万萬与與写寫旧舊双雙装裝壮壯状狀将將寿壽尽盡属屬担擔断斷虫蟲灯燈独獨麦麥乱亂礼禮炉爐楼樓湾灣辞辭数數"
    "触觸恋戀蛮蠻堕墮昼晝峡峽狭狹挟挾痴癡蚕蠶潜潛窃竊枢樞欧歐殴毆条條献獻猫貓没沒温溫内內惨慘誉譽励勵残殘"
    "盗盜遥遙脚腳区區胆膽"
)
#: Forms that only Japanese uses: its own simplifications, and characters made in Japan.
_JAPANESE_ONLY: Final = frozenset(
    "発対説辺従両関気実変戦経単伝応読訳図団専転斉歯亀検験険剣総続継絵営栄労処価売楽薬覚挙鉄銭悪亜圧庁聴県"
    "顕済沢択釈駅帯帰弾脳悩穏隠権勧歓観芸戯壊懐廃満賛鶏浄摂暁焼黒様塩証譲絶鋭閲録緑歩渉毎値戸産顔円広払仏"
    "拡鉱竜霊隣増蔵臓頼覧児桜浜巻圏遅郷恵徳収渋獣縦粋酔穂髄瀬曽荘捜巣騒拝髪抜揺謡塁涙戻齢錬勅徴逓稲闘覇弁"
    "舗豊黙姉姫斎雑桟剰乗畳縄繊壱弐歳歴暦奨蛍厳猟滝頬仮効勲薫囲駆縁軽撃衆呉娯働込峠畑枠匂塀辻栃咲噂畠笹繋"
    "躾雫鰯扱"
)
#: Written by people whose language is Chinese, and hardly in Japanese words of kanji alone.
_CHINESE_MARKS: Final = frozenset(
    "你您她妳们們吗嗎呢吧啊哪怎什很这這哦喂嗨呀啦嘛咱俩倆咗嘅喺唔佢哋嗰冇啲乜睇咁嚟噉嗯啥"
)
_CHINESE_WORDS: Final = (
    "我的", "不是", "可以", "没有", "沒有", "多少", "一下", "我要", "我想", "知道",
    "今天", "明天", "昨天", "告诉", "告訴", "因此", "因为", "因為", "但是", "如果",
    "已经", "已經", "其中", "以及", "自己", "正在", "时候", "時候", "成为", "成為",
    "他的", "在他", "和他", "的人", "了一", "是一", "有一",
)  # fmt: skip
_CANTONESE: Final = frozenset("咗嘅喺唔佢哋嗰冇啲乜睇咁嚟噉")
_JAPANESE_WORDS: Final = (
    "会社", "予約", "無料", "株式", "料金", "番号", "勉強", "注文", "返品", "返金",
    "領収", "解約", "名前", "大丈夫", "手伝", "電話番", "郵便", "切符", "財布", "携帯",
    "当社", "弊社", "御社", "皆様", "今回", "昭和", "平成", "令和", "意味不",
)  # fmt: skip

_SIMPLIFIED: Final = frozenset(
    _JAPANESE_USES_NEITHER[::2] + _JAPANESE_USES_TRADITIONAL[::2] + _JAPANESE_USES_SIMPLIFIED[::2]
) - frozenset("准")
_TRADITIONAL: Final = (
    frozenset(_JAPANESE_USES_NEITHER[1::2] + _JAPANESE_USES_TRADITIONAL[1::2] + _JAPANESE_USES_SIMPLIFIED[1::2])
    | _CANTONESE
)
_NOT_JAPANESE: Final = (
    frozenset(_JAPANESE_USES_NEITHER + _JAPANESE_USES_TRADITIONAL[::2] + _JAPANESE_USES_SIMPLIFIED[1::2])
    | _CHINESE_MARKS
)


@dataclass(frozen=True, slots=True)
class HanCounts:
    """How many characters of a text are proof of each reading; ``chinese`` and ``japanese`` exclude one another."""

    simplified: int
    traditional: int
    chinese: int
    japanese: int


def count_forms(text: str) -> HanCounts:
    """The proof in ``text``: characters of one form only, and short words that one language alone writes."""
    return HanCounts(
        simplified=_count(_SIMPLIFIED, text),
        traditional=_count(_TRADITIONAL, text),
        chinese=_count(_NOT_JAPANESE, text) + sum(word in text for word in _CHINESE_WORDS),
        japanese=_count(_JAPANESE_ONLY, text) + sum(word in text for word in _JAPANESE_WORDS),
    )


def _count(chars: frozenset[str], text: str) -> int:
    return sum(map(chars.__contains__, text))
